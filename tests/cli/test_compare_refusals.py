"""A refusal of `receiver compare` is one line, with exit status 2, and leaves everything as it was."""

import pytest
from running import HEADER, LOG, complaint


@pytest.fixture
def refused(compare, tmp_path):
    """Run the command on a log with this content, expect a refusal, and return its words."""

    def run(*arguments, log=LOG) -> str:
        (tmp_path / "a.csv").write_text(log)
        for name in ("before.html", "before.csv"):
            (tmp_path / name).write_text("as it was")
        said = complaint(compare("--report", "before.html", "--verdicts", "before.csv", *arguments))
        assert (tmp_path / "before.html").read_text() == (tmp_path / "before.csv").read_text() == "as it was"
        assert list(tmp_path.rglob("*.part")) == []
        return said

    return run


@pytest.mark.parametrize(
    ("log", "remedy"), [("table:receipts", "write it as Parquet"), ("sqlite:///receipts.db", "add --query")]
)
def test_a_table_and_a_database_are_no_files(refused, log, remedy):
    assert remedy in refused(log)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("artemiss", "did you mean artemis?"),
        ("", "there is no policy ''"),
        ("Perfect", "there is no policy 'Perfect'"),
        ("artemis:id_cash_size=9", "did you mean id_cache_size?"),
        ("perfect:size=1", "perfect takes none"),
        ("ttl", "lacks expiry="),
        ("cmq:retention=1,retry=1", "lacks network="),
        ("cmq:retry=1,network=1", "no log has the queue's minimum message time"),
        ("ttl:expiry", "not of the form parameter=value"),
        ("ttl:", "not of the form parameter=value"),
        ("ttl:expiry=1,expiry=2", "gives expiry twice"),
        ("ttl:expiry=-1", "not '-1'"),
        ("ttl:expiry=soon", "not 'soon'"),
        ("ttl:expiry=nan", "not 'nan'"),
        ("ttl:expiry= 5\n", "not ' 5"),
        ("artemis:id_cache_size=-1", "not '-1'"),
        ("artemis:id_cache_size=1.5", "a whole number"),
        ("apama:window=0,expiry=0", "would detect nothing"),
        ("\x1b[31mred", "'\\x1b[31mred'"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_said_before_reading(refused, text, said):
    complained = refused("nowhere.csv", f"--policy={text}")
    assert said in complained
    assert "\x1b" not in complained


def test_a_policy_given_twice(refused):
    assert "'perfect' is given twice" in refused("nowhere.csv", "--policy", "perfect", "--policy", "perfect")


@pytest.mark.parametrize("text", ["solace-last", "sequence"])
@pytest.mark.parametrize("bad_id", ["a", "1;s", "x:s", "rmid1:0d77c-b0b2e66aece-00000000-0000000g"])
def test_a_policy_that_cannot_judge_an_id_names_its_row(refused, text, bad_id):
    good_id = "rmid1:0d77c-b0b2e66aece-00000000-00000001" if text == "solace-last" else "1:s"
    log = f"{HEADER}1,{good_id},s,c,q\n2,,s,c,q\n3,{bad_id},s,c,q\n"
    said = refused("a.csv", "--policy", "perfect", "--policy", text, log=log)
    assert f"policy '{text}' can't judge this log: in row 2, '{bad_id}'" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "LOG"),
        (("nowhere.csv",), "nowhere.csv: No such file"),
        (("a.csv", "--domain", "queue"), "domain key"),
        (("a.csv", "--domain", "name:\udcff"), "isn't text in UTF-8"),
        (("a.csv", "--map", "unique_message_id"), "COLUMN=FIELD"),
        (("a.csv", "--time-zone", "Mars/Olympus"), "Mars/Olympus"),
        (("a.csv", "--window", "100"), "--window"),
        (("a.csv", "--report", "nowhere/r.html"), "can't write nowhere/r.html"),
        (("a.csv", "--verdicts", "nowhere/v.csv"), "can't write nowhere/v.csv"),
        (("a.csv", "--verdicts", "v.txt"), ".parquet"),
        (("a.csv", "--verdicts", "a.csv"), "overwritten"),
        (("a.csv", "--report", "before.csv"), "same file"),
        (("a.csv", "--report", ""), "--report '' names no file"),
        (("a.csv", "--report", "-"), "--report '-' names no file"),
        (("a.csv", "--domain", "receiver"), "has no column "),
    ],
)
def test_what_simulate_refuses_too(refused, arguments, said):
    assert said in refused(*arguments)


def test_an_unreadable_row(refused):
    assert "a.csv:3: " in refused("a.csv", log=HEADER + "1,a,s,c,q\nsoon,b,s,c,q\n")
