"""What `receiver compare` prints and writes, against known answers and the policies themselves."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hostile_logs import READERS, read_csv
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from running import EXAMPLE, HEADER

from receiver.policies import policy
from tests.choosing import cases

# Ids that `sequence` can judge, with 3:s before 2:s. 1:s comes again after two others and 4 s. 2:s comes again after 3
# s, and once more after 3 s.
SMALL = HEADER + "".join(
    f"{secs},{id_},s,c,q\n"
    for secs, id_ in ((1, "1:s"), (2, "3:s"), (3, "2:s"), (5, "1:s"), (6, "2:s"), (6, ""), (9, "2:s"))
)
WORKED = {
    # in order of:                      1:s 3:s 2:s 1:s       2:s       none      2:s
    "perfect":                         ("new new new duplicate duplicate unchecked duplicate", (3, 0, 0, 3)),
    "solace-lookup":                   ("new new new duplicate duplicate unchecked duplicate", (3, 0, 0, 3)),
    "artemis:id_cache_size=2":         ("new new new new duplicate unchecked duplicate", (2, 1, 0, 2)),
    "ttl:expiry=3":                    ("new new new new duplicate unchecked new", (1, 2, 0, 3)),
    "cmq:retention=2,retry=1,network=0": ("new new new new duplicate unchecked new", (1, 2, 0, 3)),
    "sequence":                        ("new new duplicate duplicate duplicate unchecked duplicate", (3, 0, 1, 1)),
    "apama:window=1,expiry=3.0":       ("new new new duplicate duplicate unchecked duplicate", (3, 0, 0, 3)),
    "apama:window=2,expiry=0":         ("new new new new duplicate unchecked duplicate", (2, 1, 0, 2)),
}  # fmt: skip
"""Worked by hand: the verdicts, then caught, missed, false duplicates and peak ids."""


def asked(texts):
    return [f"--policy={text}" for text in texts]


def answer_of(ran):
    assert (ran.status, ran.err) == (0, ""), ran
    return json.loads(ran.out)


def figures_of(answer):
    names = "caught", "missed", "false_duplicates", "peak_ids"
    return {each["policy"]: tuple(each[name] for name in names) for each in answer["policies"]}


def test_the_sample_log(compare):
    texts = "apama", "artemis:id_cache_size=5000", "ttl:expiry=20.4936", "perfect"
    figures = figures_of(answer_of(compare(EXAMPLE, "--domain", "destination", "--json", *asked(texts))))
    assert list(figures) == list(texts)
    assert figures["apama"] == (941, 0, 0, 104_598)
    assert figures["perfect"] == (941, 0, 0, 214_352)
    assert figures["artemis:id_cache_size=5000"][2:] == (0, 10_000)


def test_without_a_policy_all_that_can_judge_the_log_and_the_recommended_setting(compare, simulate):
    where = EXAMPLE, "--domain", "destination", "--json"
    answer, sized = answer_of(compare(*where)), answer_of(simulate(*where))
    assert answer["log"] == sized["log"]
    assert answer["recommendation"] == sized["recommendation"]
    figures, setting = figures_of(answer), sized["recommendation"]
    recommended = f"apama:window={setting['window']},expiry={setting['expiry_secs']:g}"
    assert figures[recommended] == (setting["caught"], setting["missed"], 0, setting["peak_ids"])
    assert {"apama", "artemis", "lru", "cmq", "ttl", "sequence", "perfect"} == {
        text.partition(":")[0] for text in figures
    }
    assert [left["policy"] for left in answer["left_out"]] == ["solace-last"]
    table = compare(*where[:-1])
    assert (table.status, table.err) == (0, "")
    assert "solace-last is left out: in row 0," in table.out


@pytest.mark.parametrize("ending", READERS)
def test_a_worked_case(compare, tmp_path, ending):
    (tmp_path / "a.csv").write_text(SMALL)
    answer = answer_of(compare("a.csv", "--json", "--verdicts", f"v.{ending}", *asked(WORKED)))
    assert figures_of(answer) == {text: figures for text, (_, figures) in WORKED.items()}
    rows = READERS[ending](tmp_path / f"v.{ending}")
    assert list(rows[0]) == ["row", "domain", "unique_message_id", "message_source_id", *WORKED]
    assert {text: " ".join(row[text] for row in rows) for text in WORKED} == {
        text: verdicts for text, (verdicts, _) in WORKED.items()
    }
    assert [int(row["row"]) for row in rows] == list(range(7))
    assert {row["domain"] for row in rows} == {"c:queue://q"}
    assert [row["unique_message_id"] for row in rows] == ["1:s", "3:s", "2:s", "1:s", "2:s", "", "2:s"]


def test_where_policies_disagree(compare, tmp_path):
    (tmp_path / "a.csv").write_text(SMALL)
    texts = "perfect", "artemis:id_cache_size=2", "sequence"
    answer = answer_of(compare("a.csv", "--json", *asked(texts)))
    said = [
        (dispute["row"], dispute["duplicate"], dispute["age_secs"], [each["verdict"] for each in dispute["verdicts"]])
        for dispute in answer["disputes"]
    ]
    assert said == [
        (2, False, None, ["new", "new", "duplicate"]),
        (3, True, 4.0, ["duplicate", "new", "duplicate"]),
    ]
    assert answer["disputed"] == 2
    causes = [[each["cause"] for each in dispute["verdicts"]] for dispute in answer["disputes"]]
    assert causes == [[None, None, "sequence gap"], [None, "evicted", None]]


def test_the_verdicts_of_policies_that_nobody_named(compare, tmp_path):
    (tmp_path / "a.csv").write_text(SMALL)
    answer = answer_of(compare("a.csv", "--json", "--verdicts", "v.csv"))
    columns = list(read_csv(tmp_path / "v.csv")[0])
    assert columns[4:] == [each["policy"] for each in answer["policies"]]


ROWS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 2, 9, -3]),
        st.sampled_from(["1:s", "2:s", "3:s", "1:t", "2:t", ""]),
        st.sampled_from(["q1", "q2"]),
    ),
    min_size=1,
    max_size=25,
)


@given(ROWS, st.integers(0, 4), st.sampled_from([0.5, 1, 5]))
@cases(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_logs_against_the_policies(compare, rows, size, secs):
    texts = (
        f"apama:window={size},expiry={secs}",
        f"artemis:id_cache_size={size}",
        f"cmq:retention={secs},retry=1,network=0",
        f"ttl:expiry={secs}",
        "solace-lookup",
        "sequence",
        "perfect",
    )
    time, log, judges, verdicts = 10, HEADER, {}, {text: [] for text in texts}
    for step, id_, queue in rows:
        time = max(0, time + step)
        log += f"{time},{id_},s,c,{queue}\n"
        for text in texts:
            judge = judges.setdefault((queue, text), policy(text))
            verdicts[text].append(judge.receive(id_, "s", received_at_us=time * 1_000_000).verdict)
    answer = answer_of(compare("-", "--json", "--verdicts", "v.csv", *asked(texts), stdin=log.encode()))
    written = read_csv(Path("v.csv"))
    for text, (caught, _, false, peak_ids) in figures_of(answer).items():
        assert [row[text] for row in written] == verdicts[text]
        assert caught + false == verdicts[text].count("duplicate")
        assert peak_ids == sum(judge.peak_ids for (_, name), judge in judges.items() if name == text)


@pytest.mark.parametrize(
    "log", [HEADER + "1,1:a,s,c,q\n", HEADER + "1,,s,c,q\n"], ids=["one receipt", "only unchecked"]
)
def test_logs_that_say_little(compare, tmp_path, log):
    (tmp_path / "a.csv").write_text(log)
    ran = compare("a.csv", "--report", "r.html", "--verdicts", "v.parquet")
    assert (ran.status, ran.err) == (0, "")
    assert "can't tell what a policy would miss" in ran.out
    assert "<html" in (tmp_path / "r.html").read_text()
    assert pq.read_table(tmp_path / "v.parquet").num_rows == 1


def test_how_the_log_is_read(compare, tmp_path):
    (tmp_path / "a.csv").write_text("received_at,OrderId\n1000,a\nsoon,b\n2000,a\n")
    how = (
        "--map",
        "unique_message_id=OrderId",
        "--domain",
        "name:x",
        "--time-unit",
        "ms",
        "--on-error",
        "skip",
        "--json",
    )
    answer = answer_of(compare("a.csv", *how, "--policy", "ttl:expiry=1", "--policy", "ttl:expiry=0.9"))
    assert (answer["log"]["skipped"], answer["log"]["last_received_at"]) == (1, "1970-01-01T00:00:02.000000Z")
    assert [each["caught"] for each in answer["policies"]] == [1, 0]
