"""The examples of `docs/tuning.md` run exactly as printed, and each of its figures is the sample log's."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from xml.etree import ElementTree as ET

import pytest
from sqlalchemy import create_engine, text

from examples.demo.processes import HOST
from receiver.domains import domain_key
from receiver.logs import ReadOptions, read_logs
from receiver.report.words import size
from receiver.settings import SimulateSettings
from receiver.simulate import recommend
from receiver.simulate.analysis import analyse, sized
from receiver.simulate.figures import Analysis, Kind
from receiver.simulate.ingest import ingest
from receiver.simulate.question import Question
from receiver.simulate.whole import WholeLog
from tests.docs.markdown import ROOT, blocks, commands, run, sections

PAGE = "docs/tuning.md"
LOGS, NEEDS, SURE, TRYING, CHANGE = (
    "1. Which logs",
    "2. What the log needs",
    "3. How sure that is",
    "4. Try it before it counts",
    "5. The change",
)
TEXT = " ".join((ROOT / PAGE).read_text(encoding="utf-8").split())
MOST_LINES = 200
APAMA, BRIDGE, TABLE, KAFKA = blocks(PAGE, "sh", LOGS)
"""The ways to get a log."""


@pytest.fixture(scope="module")
def whole() -> WholeLog:
    receipts = ingest(
        read_logs([str(ROOT / "examples" / "artemis-receipts.csv.gz")], ReadOptions()), domain_key("destination")
    )
    return WholeLog(receipts)


@pytest.fixture(scope="module")
def analysis(whole) -> Analysis:
    return analyse(whole, Question("destination", [1], [1]))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def counted(printed: str) -> tuple[int, int]:
    """The numbers of receipts and duplicates that a run of `simulate` has printed."""
    (reported,) = re.findall(r"([\d,]+) receipts?, ([\d,]+) duplicates?", printed)
    return int(reported[0].replace(",", "")), int(reported[1].replace(",", ""))


def test_it_is_short():
    assert len((ROOT / PAGE).read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_no_command_stands_elsewhere():
    run_here = [block for heading in (LOGS, NEEDS, TRYING) for block in blocks(PAGE, "sh", heading)]
    assert blocks(PAGE, "sh") == run_here
    assert blocks(PAGE, "python") == []


# Its figures.


def test_the_kinds_have_the_figures_shown(analysis):
    rows = re.findall(
        r"^\| `(\w+)` \| (.*) \| (.*) \| .* \| (.*) \| (.*) \| (.*) \| (.*) \|$", sections(PAGE)[NEEDS], re.MULTILINE
    )
    assert rows == [
        (
            str(each.kind),
            f"{each.setting.window:,}",
            f"{each.setting.expiry_us / 1_000_000:g} s",
            f"{each.setting.missed}",
            "-" if each.unseen is None else f"{each.unseen.missed}",
            f"{each.setting.peak_ids:,}",
            size(each.memory_bytes),
        )
        for each in analysis.kinds
    ]


def test_each_figure_is_that_of_the_sample_log(analysis, whole):
    evidence, log, both, lean = analysis.evidence, analysis.log, analysis.of(Kind.BOTH), analysis.of(Kind.LEAN)
    _, choice = sized(whole, Question("destination"))
    outcomes = whole.replay([1], [1], choice.pairs).pairs
    window, expiry_us = by_second = min(choice.asked[2].lean, key=lambda pair: (outcomes[pair].peak_ids, pair))
    in_first = whole.facts.halves[0].windows.total
    assert (analysis.recommendation.sized.kind, both.memory_bytes // lean.memory_bytes) == (Kind.KEEP, 9)
    stated = [
        f"{evidence.window_need} ids for the neediest",
        f"{evidence.expiry_need_us / 1_000_000} s for the neediest",
        f"Twice {evidence.window_need} is {2 * evidence.window_need}, so W = {both.setting.window};",
        (
            f"twice {evidence.expiry_need_us / 1_000_000} s is {evidence.expiry_need_us / 500_000:.2f} s, so E = "
            f"{both.setting.expiry_us / 1_000_000:g} s"
        ),
        (
            f"That took {log.max_delivery_secs} s here, so E is at least "
            f"{analysis.of(Kind.WINDOW).setting.expiry_us / 1_000_000:g} s"
        ),
        f"none of the {log.duplicates} duplicates either",
        f"`lean` misses {lean.unseen.missed} of {lean.unseen.duplicates} unseen",
        (
            f"asks for W = {window} and E = {expiry_us / 1_000_000:g} s. That misses "
            f"{in_first - outcomes[by_second].caught_in_first_half} of the {in_first} duplicates of the first half"
        ),
        f"sends {analysis.peak_per_second} ids in a second, and a repeat came {evidence.expiry_need_us // 1_000_000} s late",
        f"`both` misses {both.unseen.missed} of {both.unseen.duplicates} unseen",
        (
            f"There are {evidence.bursts} here. If bursts are alike, the next one exceeds the largest of them with a chance of "
            f"1 in {evidence.bursts + 1}"
        ),
        (
            f"`needs W {evidence.window_need} of {both.setting.window}, E {evidence.expiry_need_us / 1_000_000:.1f} s of "
            f"{both.setting.expiry_us / 1_000_000:g} s`"
        ),
        f"The sample log is **{evidence.grade}**: it is {evidence.span_us / evidence.expiry_need_us:.1f} times as long",
    ]
    assert [words for words in stated if words not in TEXT] == []


def test_grades_defaults_and_budget_are_the_programs():
    defaults = SimulateSettings()
    stated = [
        f"(`--margin`, {defaults.margin:g})",
        f"more memory than `--budget` allows ({size(defaults.budget_bytes)})",
        f"is this package's**, {defaults.memory_bytes_per_id} bytes an id",
        (
            f"| **strong** | {recommend.STRONG_BURSTS} bursts, `both` misses none unseen, the log is "
            f"{recommend.STRONG_SPANS} times as long"
        ),
        f"| **fair** | {recommend.FAIR_BURSTS} bursts, `both` misses none unseen |",
        f"but has fewer than {recommend.STRONG_BURSTS} bursts",
    ]
    assert [words for words in stated if words not in TEXT] == []


def test_what_is_tried_is_what_the_log_supports(analysis):
    """Apama gets that setting. Both blocks are XML, and together they are a bean."""
    (bean,), (lines,) = blocks(PAGE, "xml", LOGS), blocks(PAGE, "xml", CHANGE)
    properties = ET.fromstring(bean.replace("</bean>", f"{lines}</bean>"))  # noqa: S314 - our own text
    setting = analysis.of(Kind.BOTH).setting
    assert f"as if {size(analysis.recommendation.sized.memory_bytes)} were too much" in TEXT
    assert [(each.get("name"), each.get("value")) for each in properties] == [
        ("logJmsMessages", "true"),
        ("dupDetectionPerSourceExpiryWindowSize", str(setting.window)),
        ("dupDetectionExpiryTimeSecs", f"{setting.expiry_us / 1_000_000:g}"),
    ]
    given = re.findall(r"--window (\d+) --expiry (\d+)", TEXT)
    assert {(int(window), 1_000_000 * int(secs)) for window, secs in given} == {(setting.window, setting.expiry_us)}


# Its commands, in a folder that has what they name.


@pytest.mark.slow
def test_the_log_of_a_correlator(folder):
    message = (
        "2017-03-05 18:17:36.091 INFO  [27192:JMSReceiver:orders] - 'orders' has received JMS message: "
        "Property.uniqueMessageId=1:a\n   Property.messageSourceId=a\n   JMSDestination=Queue<orders>\n"
        '   JMSRedelivered=false\n   JMSTimestamp=1488737856000\n   Body="10 EUR"\n'
    )
    status = (
        "2017-03-05 18:17:40.484 INFO  [19636:Status] - JMS Status: s=1 tx=0 sRate=0 sOutst=0 r=1 rx=2 rRate=0 rWindow=0 "
        "rRedel=0 rMaxDeliverySecs=0.0 rDupsDet=1 rDupIds=1 connErr=0 jvmMB=63\n"
    )
    (folder / "correlator.log").write_text(2 * message + status, encoding="utf-8")
    (line,) = commands(APAMA)
    printed = run(line, folder).stdout
    assert counted(printed) == (2, 1)
    assert "rDupsDet=1, rDupIds=1" in " ".join(printed.split())


@pytest.mark.slow
def test_a_table_of_receipts(folder, fresh_postgres_url):
    if shutil.which("psql") is None:
        pytest.skip("there is no psql")
    engine = create_engine(fresh_postgres_url)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE received (received_at timestamptz, message_id text, sender text, queue text)")
        )
        for id_ in ("1:a", "2:a", "1:a"):
            connection.execute(text("INSERT INTO received VALUES (clock_timestamp(), :id, 'a', 'orders')"), {"id": id_})
    engine.dispose()
    export, simulate = TABLE.splitlines()
    url = fresh_postgres_url.replace("+psycopg", "")
    subprocess.run(export, shell=True, check=True, cwd=folder, env=os.environ | {"DATABASE_URL": url})  # noqa: S602 - our own text
    (line,) = commands(simulate)
    assert counted(run(line, folder).stdout) == (3, 1)


@pytest.mark.slow
def test_a_topic_of_kafka(folder):
    """A script replaces kcat, because no broker runs here. It writes what kcat writes with `-J`."""
    program = folder / "kcat"
    program.write_text(
        "#!/bin/sh\nfor n in 57 58; do\n"
        """  echo '{"topic":"orders","partition":'$7',"offset":'$n',"tstype":"create","ts":17952250686'$n',"broker":0,"""
        """"key":"'$7':a","payload":"10 EUR"}'\ndone\n""",
        encoding="utf-8",
    )
    program.chmod(0o755)
    *exports, simulate = KAFKA.splitlines()
    for export in exports:
        subprocess.run(export, shell=True, check=True, cwd=folder, env={"PATH": f"{folder}:{os.environ['PATH']}"})  # noqa: S602
    (line,) = commands(simulate)
    assert counted(run(line, folder).stdout) == (4, 2)


@pytest.mark.artemis
@pytest.mark.slow
def test_a_bridge_records(running_artemis, folder):
    own = f"{HOST}:{running_artemis.amqp_port}/queue/orders-{uuid.uuid4()}"
    send = [sys.executable, str(ROOT / "examples" / "bridge" / "send.py"), f"amqp://{own}"]
    run([*send, "1", "500"], folder)
    bridge, simulate = commands(BRIDGE.replace("localhost/queue/orders", own))
    run(bridge, folder)
    receipts, duplicates = counted(run(simulate, folder).stdout)
    assert receipts - duplicates == 1_000
    assert duplicates
    assert counted(run(*commands(blocks(PAGE, "sh", TRYING)[1]), folder).stdout) == (receipts, duplicates)

    (options,) = re.findall(r"`(--mode AT_LEAST_ONCE .*?)`", sections(PAGE)[TRYING])
    run([*send, "500", "1000"], folder)
    observing = [*bridge[:-2], *shlex.split(options), *bridge[-2:]]
    swaps = {"sqlite:///receiver.db": "sqlite:///other.db", "file:orders.jsonl": "file:all.jsonl"}
    ran = run([swaps.get(argument, argument) for argument in observing], folder)
    assert "rDupsDet=0 " not in ran.stderr.splitlines()[-1]
    assert len((folder / "all.jsonl").read_text(encoding="utf-8").splitlines()) == receipts


@pytest.mark.slow
def test_sizing_the_sample_log(folder, analysis):
    (line,) = commands(*blocks(PAGE, "sh", NEEDS))
    printed = run(line, folder).stdout
    assert counted(printed) == (analysis.log.receipts, analysis.log.duplicates)
    assert (folder / "report.html").exists()
    assert printed.startswith("Keep the defaults, W = 2,000 ids per source and E = 120 s.")


@pytest.mark.slow
def test_the_next_days_log(folder):
    (next_day,) = commands(blocks(PAGE, "sh", TRYING)[0])
    assert run(next_day, folder).stdout.startswith(
        "W = 360 and E = 41 s would miss none of 941 duplicates. This passes"
    )
