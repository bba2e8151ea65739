"""Results of campaigns are kept and summed up, and a campaign that has passed isn't run again."""

import json
from dataclasses import asdict

from tests import campaigns
from tests.campaigns import Line, read, table

pytest_plugins = ["pytester"]
KILLS = Line("tests/a.py::test_kills[sqlite]", "c0", "long", 1.0, {"kills": 90, "cuts": 10}, 1_000, 0, 0)
MORE = Line("tests/a.py::test_kills[postgresql]", "c0", "long", 1.0, {"kills": 5}, 500, 0, 2)
OTHERS = Line("tests/b.py::test_faults", "c0", "long", 1.0, {"errors": 7}, 70, 1, 0)


def test_a_line_that_was_cut_off_is_passed_over(tmp_path):
    file = tmp_path / "lines"
    lines = [KILLS, MORE, OTHERS, KILLS]
    file.write_text("".join(json.dumps(asdict(line)) + "\n" for line in lines) + '{"test": "cut o')
    assert read(file) == lines
    assert read(tmp_path / "none") == []


def test_sums():
    assert table([KILLS, MORE, OTHERS]).splitlines()[2:] == [
        "| `tests/a.py` | 2 | 95 kills, 10 cuts | 1,500 | 0 | 2 |",
        "| `tests/b.py` | 1 | 7 errors | 70 | 1 | 0 |",
        "| all | 3 | 112 | 1,570 | 1 | 2 |",
    ]


def test_a_campaign_that_passed_is_kept_and_not_run_again(pytester, monkeypatch):
    monkeypatch.setattr(campaigns, "FILE", pytester.path / "lines")
    monkeypatch.setattr(campaigns, "_commit", lambda: "c0")
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--campaign', default='long')")
    pytester.makepyfile("""
        from tests.campaigns import survived

        def test_passes():
            survived({"kills": 2, "cuts": 0}, 10)
            survived({"kills": 1}, 5)
        def test_fails():
            survived({"kills": 3}, 10)
            assert False
        def test_other():
            pass
    """)
    pytester.runpytest_inprocess("-p", "tests.campaigns").assert_outcomes(passed=2, failed=1)
    (line,) = read(campaigns.FILE)
    assert (line.test.partition("::")[2], line.faults, line.effects) == ("test_passes", {"kills": 3}, 15)
    pytester.runpytest_inprocess("-p", "tests.campaigns", "--go-on").assert_outcomes(passed=1, failed=1, deselected=1)
