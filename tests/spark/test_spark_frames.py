"""DataFrames of the caller's: `size_windows` says the same as the local engine for equal receipts in equal order,
and `judge` the same as the detector for each receipt."""

import json
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from html import unescape

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.functions import col, monotonically_increasing_id, timestamp_micros

from receiver import TwoTierDetector
from receiver.domains import Channel, domain_key
from receiver.errors import LogFormatError, MissingExtraError, SettingsError, SparkError
from receiver.logs import ReadOptions, read_logs
from receiver.logs.files import find_files
from receiver.report.html import page_text
from receiver.report.json_object import analysis_object, dumped
from receiver.report.sizing import analysis_document
from receiver.settings import SimulateSettings
from receiver.simulate.analysis import analyse
from receiver.simulate.ingest import ingest
from receiver.simulate.question import Question
from receiver.simulate.whole import WholeLog
from receiver.spark import judge, size_windows
from receiver.spark.frames import FrameAnalysis
from receiver.spark.sources import file_and_row, read_files
from receiver.steps.log import chunked_log
from tests.docs.markdown import ROOT, blocks, replaced
from tests.logs.reading import Row, csv_bytes, parquet_bytes

START_US = 1_795_219_200_000_000


def receipts(seed: int, rows: int = 3_000, step_back: bool = True) -> list[Row]:
    """Receipts with ties, a clock that steps back, and ids that come again near and far, also from other sources. A
    few ids are empty."""
    draw = random.Random(seed)  # noqa: S311 - draws by seed
    time_us, rows_made = START_US, []
    for number in range(rows):
        time_us += draw.choice([0, 0, 1, 1_000, 2_000_000, *([-1_500_000] * step_back)])
        rows_made.append(
            Row(
                time_us,
                draw.choice(["", "007", "NaN", *(f"id{draw.randrange(max(1, number // 2))}" for _ in range(9))]),
                draw.choice(["", "a", "b", "b", "b"]),
                draw.choice(["c", "d"]),
                draw.choice(["q1", "q1", "queue://q2", "topic://t"]),
                draw.choice(["", "r"]),
                jms_redelivered=draw.random() < 0.1,
                jms_timestamp=draw.choice([0, time_us // 1_000 - 30]),
                body_digest=draw.choice(["", "x", "y"]),
            )
        )
    return rows_made


def said_here(
    paths, key="destination", windows=None, expiries_us=None, present=(2000, 120_000_000), **settings
) -> dict:
    question = Question(key, windows, expiries_us, SimulateSettings(**settings), present)
    receipts = ingest(read_logs([str(path) for path in paths], ReadOptions()), domain_key(key))
    log = WholeLog(receipts, max_missed=question.settings.max_missed)
    return json.loads(dumped(analysis_object(analyse(log, question))))


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.parquet"
    path.write_bytes(parquet_bytes(receipts(1)))
    return path


@pytest.mark.costly
def test_an_analysis_has_a_page_for_a_file_and_for_a_notebook(tmp_path, monkeypatch):
    """It is the command's page, except for the name of its maker."""
    (tmp_path / "log.parquet").write_bytes(parquet_bytes(receipts(1)))
    question = Question("destination", [3], [1_000_000])
    analysis = analyse(WholeLog(ingest(read_logs([str(tmp_path)], ReadOptions()), domain_key("destination"))), question)
    of_frame = FrameAnalysis(**{field.name: getattr(analysis, field.name) for field in fields(analysis)})
    of_frame.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page == page_text(analysis_document(analysis), "receiver.spark.size_windows")
    cell = of_frame._repr_html_()
    (inner,) = re.findall('^<iframe srcdoc="([^"]*)" style="[^"]*"></iframe>$', cell)
    assert unescape(inner) == page
    monkeypatch.setitem(sys.modules, "receiver.report.html", None)
    assert of_frame._repr_html_() is None
    with pytest.raises(MissingExtraError, match="report"):
        of_frame.report(tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


@pytest.mark.slow
def test_rows_of_files_stand_in_their_order(spark, tmp_path):
    for index in range(3):
        (tmp_path / f"{index} é.parquet").write_bytes(parquet_bytes(receipts(index)))
    frame = spark.read.parquet(str(tmp_path))
    here = said_here(sorted(tmp_path.iterdir()), windows=[0, 3, 50], expiries_us=[0, 1_000_000, 60_000_000])
    there = size_windows(frame, domain="destination", windows=[0, 3, 50], expiries_secs=[0, 1, 60])
    assert there.as_dict() == here
    assert (
        size_windows(frame.repartition(5), domain="destination", windows=[0, 3, 50], expiries_secs=[0, 1, 60]).as_dict()
        == here
    )


@pytest.mark.slow
def test_rows_of_files_stand_in_their_order_however_they_were_sorted(spark, tmp_path):
    """Sorted by time, the rows of two files take turns: that makes more parts of files than a task can number."""
    for file in range(2):
        rows = [Row(START_US + 2 * number + file, f"id{number % 700}") for number in range(2_100)]
        (tmp_path / f"{file}.parquet").write_bytes(parquet_bytes(rows))
    frame = spark.read.parquet(str(tmp_path)).coalesce(1).sortWithinPartitions("received_at")
    here = said_here(sorted(tmp_path.iterdir()), windows=[50], expiries_us=[1_000_000])
    kept = spark.sparkContext._jsc.getPersistentRDDs
    before = set(kept())
    assert size_windows(frame, domain="destination", windows=[50], expiries_secs=[1]).as_dict() == here
    assert set(kept()) <= before


@pytest.mark.slow
def test_an_order_by_column_and_a_grid_chosen_from_the_log(spark, log):
    frame = spark.read.parquet(str(log)).select("*", monotonically_increasing_id().alias("n"))
    frame = spark.createDataFrame(frame.toArrow()).repartition(7)
    analysis = size_windows(frame, domain="default", order_by="n", max_missed=2, margin=1.5)
    assert analysis.as_dict() == said_here([log], "default", max_missed=2, margin=1.5)


@pytest.mark.slow
def test_what_is_set_at_present_and_a_budget(spark, log):
    frame, most = spark.read.parquet(str(log)), 1_000
    analysis = size_windows(frame, domain="destination", current=(7, 0.5), budget_bytes=most).as_dict()
    assert analysis == said_here([log], present=(7, 500_000), budget_bytes=most)
    present = analysis["kinds"]["present"]
    assert (present["window"], present["expiry_secs"]) == (7, 0.5)
    assert analysis["recommendation"] != size_windows(frame, domain="destination").as_dict()["recommendation"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "timestamp", "number"])
def test_without_any_order_receipts_go_by_time_then_content(spark, tmp_path, kind):
    rows = sorted(receipts(4, step_back=False))
    log = tmp_path / "log.csv"
    log.write_bytes(csv_bytes(rows))
    frame = spark.createDataFrame(random.Random(4).sample(rows, len(rows)), list(Row._fields))  # noqa: S311
    if kind == "text":
        frame = frame.withColumn("received_at", col("received_at").cast("string"))
    elif kind == "timestamp":
        frame = frame.withColumn("received_at", timestamp_micros("received_at"))
    assert size_windows(frame, domain="connection").as_dict() == said_here([log], "connection")


def detected(rows: list[Row], window: int, expiry_secs: float) -> list[tuple[str, str, str | None]]:
    """Each receipt's id, verdict and tier, by the detector."""
    key, detectors, decided = domain_key("destination"), {}, []
    for row in rows:
        name = key.name(Channel(row.connection_id, row.destination, row.receiver_id))
        detector = detectors.setdefault(name, TwoTierDetector(window, expiry_secs))
        decision = detector.receive(row.unique_message_id, row.message_source_id, received_at_us=row.received_at)
        decided.append(
            (row.unique_message_id, str(decision.verdict), None if decision.tier is None else str(decision.tier))
        )
    return decided


def test_judge_tells_what_the_detector_tells(spark, log):
    frame = spark.read.parquet(str(log)).withColumnRenamed("unique_message_id", "uniqueMessageId")
    judged = judge(frame, window=3, expiry_secs=5, domain="destination")
    assert judged.columns == [*frame.columns, "verdict", "tier"]
    verdicts = judged.select("uniqueMessageId", "verdict", "tier").collect()
    assert sorted(map(tuple, verdicts), key=str) == sorted(detected(receipts(1), 3, 5), key=str)


def test_a_frame_that_was_shuffled_is_put_in_order_once(spark, log):
    """Spark doesn't notice that two plans over such a checkpoint are equal, and each sort draws its partitions anew."""
    frame = spark.read.parquet(str(log)).select("*", monotonically_increasing_id().alias("n"))
    frame = spark.createDataFrame(frame.toArrow()).repartition(5, "message_source_id", "receiver_id").localCheckpoint()
    judged = judge(frame, window=3, expiry_secs=5, domain="destination", order_by="n").orderBy("n")
    verdicts = judged.select("unique_message_id", "verdict", "tier").collect()
    assert list(map(tuple, verdicts)) == detected(receipts(1), 3, 5)
    sized = size_windows(frame, domain="destination", windows=[3, 50], expiries_secs=[1], order_by="n").as_dict()
    assert sized == said_here([log], windows=[3, 50], expiries_us=[1_000_000])


def test_what_was_kept_of_a_frame_is_let_go(spark, log):
    """Compared by number, because Spark itself may let go of earlier tests' data at any moment."""
    frame, kept = spark.read.parquet(str(log)), spark.sparkContext._jsc.getPersistentRDDs
    before = set(kept())
    size_windows(frame, domain="destination", windows=[5], expiries_secs=[1])
    assert set(kept()) <= before
    with pytest.raises(SettingsError, match="settings, over"):  # it is known once the log has chosen expiries
        size_windows(frame, windows=range(5_000))
    assert set(kept()) <= before


def test_the_settings_of_a_session_are_left_as_they_were(spark, log):
    before = dict(row for row in spark.sql("SET").collect())
    size_windows(spark.read.parquet(str(log)), windows=[1], expiries_secs=[1])
    assert dict(row for row in spark.sql("SET").collect()) == before


@pytest.mark.parametrize(
    ("make", "is_known"),
    [
        (lambda frame: frame.where("destination = 'q1'").select("received_at", "unique_message_id"), True),
        (lambda frame: frame.selectExpr("*", "1 as n").orderBy("received_at"), True),
        (lambda frame: frame.repartition(3).cache(), True),
        (lambda frame: frame.join(frame.select("receiver_id").distinct(), "receiver_id"), False),
        # Files and rows of the frame on the right would be taken for those of the receipts on the left.
        (lambda frame: frame.localCheckpoint().crossJoin(frame.selectExpr("receiver_id as r").limit(1)), False),
        (lambda frame: frame.groupBy("received_at", "unique_message_id").count(), False),
        (lambda frame: frame.union(frame), False),
        (lambda frame: frame.localCheckpoint(), False),
    ],
)
def test_which_frames_know_the_order_of_their_files(spark, log, capfd, make, is_known):
    frame = make(spark.read.parquet(str(log)))
    capfd.readouterr()
    file_row = file_and_row(frame)
    assert (file_row is not None) is is_known
    assert capfd.readouterr().err == ""
    if file_row is not None:
        rows = [row[-1] for row in frame.select("*", *file_row).collect()]
        assert len(set(rows)) == len(rows)
    frame.unpersist()


def test_text_knows_no_order(spark, tmp_path):
    (tmp_path / "log.csv").write_text("received_at,unique_message_id\n1,a\n")
    assert file_and_row(spark.read.csv(str(tmp_path / "log.csv"), header=True)) is None


@pytest.mark.parametrize(
    ("make", "arguments", "error", "complaint"),
    [
        (lambda frame: frame.drop("received_at"), {}, LogFormatError, "no column received_at"),
        (lambda frame: frame.limit(0), {}, LogFormatError, "no receipt"),
        (
            lambda frame: frame.selectExpr("true as received_at", "unique_message_id"),
            {},
            LogFormatError,
            "expected a time",
        ),
        (
            lambda frame: frame.selectExpr("float(received_at) as received_at", "unique_message_id"),
            {},
            LogFormatError,
            "expected a time in 64 bits",
        ),
        (
            lambda frame: frame.selectExpr("received_at", "array(1) as unique_message_id"),
            {},
            LogFormatError,
            "expected text",
        ),
        (
            lambda frame: frame.selectExpr("unhex('FF') as received_at", "unique_message_id").localCheckpoint(),
            {},
            LogFormatError,
            r"the frame, partition 0:1: received_at: not a time",
        ),
        (lambda frame: frame, {"order_by": "nothing"}, SettingsError, "no column 'nothing'"),
        (lambda frame: frame, {"column_map": ["received_at"]}, SettingsError, "column_map must be a mapping"),
        (lambda frame: frame.selectExpr("*", "nullif(1, 1) as n"), {"order_by": "n"}, SettingsError, "nulls"),
        (lambda frame: frame.selectExpr("*", "map(1, 2) as n"), {"order_by": "n"}, SettingsError, "no order"),
        (lambda frame: frame, {"windows": []}, SettingsError, "list of numbers"),
        (lambda frame: frame, {"windows": 100}, SettingsError, "list of numbers"),
        (lambda frame: frame, {"windows": [-1]}, SettingsError, "^windows: '-1' isn't a number"),
        (lambda frame: frame, {"windows": np.array([3, -1])}, SettingsError, "^windows: '-1' isn't a number"),
        (lambda frame: frame, {"expiries_secs": ["x"]}, SettingsError, "^expiries_secs: 'x' isn't a number"),
        (lambda frame: frame, {"windows": [0], "expiries_secs": [0]}, SettingsError, "detect nothing"),
        (lambda frame: frame, {"current": (0, 0)}, SettingsError, "detect nothing"),
        (lambda frame: frame, {"current": (2000, -1)}, SettingsError, "isn't a number"),
        (
            lambda frame: frame,
            {"current": (2000.5, 120)},
            SettingsError,
            r"^current: the window 2000\.5 isn't a whole number",
        ),
        (lambda frame: frame, {"current": (2000,)}, SettingsError, "a window and an expiry"),
        (lambda frame: frame, {"current": "2000,120"}, SettingsError, "a window and an expiry"),
        (lambda frame: frame, {"current": 2000}, SettingsError, "a window and an expiry"),
        (lambda frame: frame, {"budget_bytes": 0}, SettingsError, "budget_bytes"),
        (lambda frame: frame, {"domain": "dommain"}, SettingsError, "dommain"),
        (lambda frame: frame.drop("receiver_id"), {"domain": "receiver"}, LogFormatError, "receiver_id"),
    ],
)
def test_frames_and_arguments_that_can_not_be_meant(  # noqa: PLR0917 - a table of cases
    spark, log, make, arguments, error, complaint
):
    with pytest.raises(error, match=complaint):
        size_windows(make(spark.read.parquet(str(log))), **arguments)


@pytest.mark.parametrize("frame", ["receipts.parquet", pa.table({"unique_message_id": ["a"]})], ids=["path", "table"])
def test_what_is_no_frame_of_spark_is_told_what_to_give(frame):
    for ask in (size_windows, lambda given: judge(given, window=1, expiry_secs=1)):
        with pytest.raises(SettingsError, match=r"not a DataFrame of Spark \(give spark\.read\.parquet"):
            ask(frame)


@pytest.mark.parametrize(
    ("more", "error", "complaint"),
    [
        (["1 as Tier"], SettingsError, "a column 'Tier' already"),
        (["1 as z", "2 as z"], SparkError, "Reference `z` is ambiguous"),
    ],
)
def test_columns_that_no_judged_frame_can_have(spark, log, more, error, complaint):
    with pytest.raises(error, match=complaint):
        judge(spark.read.parquet(str(log)).selectExpr("*", *more), window=1, expiry_secs=1)


def test_an_order_is_by_a_name(spark, log):
    with pytest.raises(SettingsError, match="no column Column<"):
        size_windows(spark.read.parquet(str(log)), order_by=col("received_at"))


def test_an_order_is_by_a_column_of_the_caller(spark, log):
    with pytest.raises(SettingsError, match="no column '_receiver_row_id'") as refused:
        judge(spark.read.parquet(str(log)), window=1, expiry_secs=1, order_by="_receiver_row_id")
    assert "_receiver" not in (refused.value.hint or "")


def test_a_frame_without_an_end(spark, log):
    schema = spark.read.parquet(str(log)).schema
    with pytest.raises(SettingsError, match="a stream"):
        size_windows(spark.readStream.schema(schema).parquet(str(log)))


@pytest.mark.usefixtures("java")
def test_a_frame_of_a_session_that_was_stopped():
    stopped = "from pyspark.sql import SparkSession; frame = (spark := SparkSession.builder.getOrCreate()).range(1); spark.stop()"
    program = f"{stopped}; from receiver.spark import size_windows; size_windows(frame)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "SettingsError: the frame's Spark session was stopped" in ran.stderr


def test_a_row_that_can_not_be_read_is_told_by_file_and_row(spark, tmp_path):
    rows = [
        row._replace(received_at=row.received_at if index != 7 else -5) for index, row in enumerate(receipts(2, 20))
    ]
    path = tmp_path / "bad.parquet"
    path.write_bytes(parquet_bytes(rows))
    with pytest.raises(LogFormatError, match=r"bad\.parquet:8: received_at: "):
        size_windows(spark.read.parquet(str(path)))


def test_a_flag_that_is_no_truth_is_refused_whoever_reads_it(spark, tmp_path):
    """Our reader gives it unsigned. Spark's gives it as the next larger type with a sign."""
    path = tmp_path / "bad.parquet"
    flags = pa.array([1, 7], pa.uint8())
    pq.write_table(pa.table({"received_at": [1, 2], "unique_message_id": ["a", "b"], "jms_redelivered": flags}), path)
    complaint = r"bad\.parquet:2: jms_redelivered is 7, expected true, false, 1, 0"
    with pytest.raises(LogFormatError, match=complaint):
        chunked_log(*read_files(spark, find_files([str(path)]), ReadOptions()), Question("name:x"), cores=1)
    with pytest.raises(LogFormatError, match=complaint):
        size_windows(spark.read.parquet(str(path)), domain="name:x")


def test_the_notebook_of_the_documents(spark, log, capsys):
    """Its cell runs exactly as printed, except for the path of its receipts."""
    (cell,) = blocks("docs/spark.md", "python")
    exec(compile(cell.replace("s3a://bucket/receipts", str(log)), "docs/spark.md", "exec"), {"spark": spark})  # noqa: S102
    tiers = Counter(tier for _, _, tier in detected(receipts(1), 2000, 120) if tier)
    shown = dict(re.findall(r"(source|time)\s*\|\s*(\d+)", capsys.readouterr().out))
    assert shown == {tier: str(count) for tier, count in tiers.items()}


@pytest.mark.slow
def test_the_notebook_of_the_examples(spark, tmp_path, monkeypatch, capsys):
    """Its code runs as a program in the present session, and says the same as the local engine on the sample log."""
    notebook = json.loads((ROOT / "examples" / "size_on_spark.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    sample = ROOT / "examples" / "artemis-receipts.csv.gz"
    program = replaced("\n".join(cells), {'"artemis-receipts.csv.gz"': repr(sample.as_uri())})
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(program, "size_on_spark.ipynb", "exec"), names)  # noqa: S102
    advice = said_here([sample])["recommendation"]
    assert names["advice"] == advice
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert unescape(names["analysis"]._repr_html_()).startswith(f'<iframe srcdoc="{page}"')
    duplicates = re.findall(r"duplicate\s*\|\s*(?:source|time)\s*\|\s*(\d+)", capsys.readouterr().out)
    assert sum(map(int, duplicates)) == advice["caught"]
    assert names["spark"] is spark
