"""A log holds exactly what was recorded: to the letter, in order, by whatever path it is read."""

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from recorded import FORMATS, START_US, ids, read, receipt, record, segments, simulate, unfinished

from receiver.domains import Channel
from receiver.errors import LogFormatError
from receiver.logs.packing import packed, problems_of, recordable, rows_of, unpacked
from receiver.message import LATEST_US, Receipt
from receiver.recording import Recorder
from tests.choosing import cases

HOSTILE = ("", " ", "007", "NaN", "null", "1.0", "a\nb", '"', "\\", "\x00", "e\u0301", "é", "\U0001f980", "x" * 65_536)

texts = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
receipts = st.builds(
    Receipt,
    unique_message_id=st.none() | texts,
    message_source_id=st.none() | texts,
    received_at_us=st.integers(0, LATEST_US),
    redelivered=st.booleans(),
    jms_timestamp_ms=st.none() | st.integers(0, LATEST_US // 1_000),
    body_digest=st.none() | texts,
)


def as_read(receipt: Receipt) -> Receipt:
    """The receipt as a log has it, where missing and empty mean the same."""
    return receipt._replace(
        unique_message_id=receipt.unique_message_id or "",
        message_source_id=receipt.message_source_id or None,
        jms_timestamp_ms=receipt.jms_timestamp_ms or None,
        body_digest=receipt.body_digest or None,
    )


@pytest.mark.parametrize("ending", FORMATS)
@cases(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(receipts, min_size=1, max_size=5), min_size=1, max_size=4))
def test_every_receipt_comes_back(tmp_path_factory, ending, batches):
    path = tmp_path_factory.mktemp("log") / f"receipts.{ending}"
    with Recorder(path) as recorder:
        for batch in batches:
            record(recorder, batch)
    expected = [as_read(receipt) for batch in batches for receipt in batch]
    assert read(path) == read(path.parent) == read(path.with_name(f"*.{ending}")) == expected
    assert (recorder.written, recorder.dropped, recorder.last_error) == (len(expected), 0, None)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("ending", FORMATS)
def test_simulate_names_the_domain_of_the_receiver(tmp_path, ending):
    path = tmp_path / f"receipts.{ending}"
    with Recorder(path, Channel("broker:a", "topic://prices", "desk-1")) as recorder:
        record(
            recorder, [receipt(0), receipt(1), receipt(2, unique_message_id="id-0"), receipt(3, unique_message_id="")]
        )
    analysis = simulate(path)
    assert [domain["domain"] for domain in analysis["domains"]] == ["broker\\:a:desk-1"]
    counts = {"receipts": 4, "unchecked": 1, "duplicates": 1, "skipped": 0}
    assert {name: analysis["log"][name] for name in counts} == counts


def test_a_folder_takes_json_lines(tmp_path):
    with Recorder(str(tmp_path)) as recorder:
        record(recorder, [receipt(0)])
    (name,) = segments(tmp_path)
    assert name.startswith("receipts-")
    assert name.endswith(".jsonl.zst")


def test_nothing_received_leaves_nothing(tmp_path):
    with Recorder(tmp_path) as recorder:
        record(recorder, [])
        recorder.flush()
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_what_waits_is_no_log_yet(tmp_path):
    with Recorder(tmp_path) as recorder:
        record(recorder, [receipt(0)])
        recorder.flush()
        (waiting,) = unfinished(tmp_path)
        assert waiting.stat().st_size > 0
        with pytest.raises(LogFormatError, match="a folder without logs"):
            read(tmp_path)
    assert ids(read(tmp_path)) == ["id-0"]


def test_texts_of_several_lines(tmp_path):
    """Each stays as it is, beside others that are stored in another way."""
    texts = ["a", "b\nc", "", "\n", "d"]
    with Recorder(tmp_path) as recorder:
        rows = [(7, 5, None, text, text, None, None) for text in texts if text]
        recorder.commit(recorder.packed(rows, [(2, Receipt(None, "s", 4))]))
        recorder.commit(recorder.packed([(number, 6, None, None, f"id-{number}", None, None) for number in (1, 2)], []))
    receipts_read = read(tmp_path)
    assert ids(receipts_read) == ["a", "b\nc", "", "\n", "d", "id-1", "id-2"]
    assert [each.message_source_id for each in receipts_read] == ["a", "b\nc", "s", "\n", "d", None, None]


def test_batches_of_several_channels_share_a_file():
    """They are in order, which here is the order of one source."""
    batches = [
        unpacked(packed([], [(0, receipt(number))], Channel(f"broker-{number % 2}", "queue://orders")).data)
        for number in range(9)
    ]
    (rows,) = rows_of(batches)
    assert rows["unique_message_id"].to_pylist() == [f"id-{number}" for number in range(9)]
    assert rows["connection_id"].to_pylist() == [f"broker-{number % 2}" for number in range(9)]


FROM_BATCHES = [
    ({"unique_message_id": "a\ud800"}, "a lone surrogate in unique_message_id, which UTF-8 can't hold"),
    ({"message_source_id": "\udfff"}, "a lone surrogate in message_source_id, which UTF-8 can't hold"),
    ({"unique_message_id": "x" * 1_048_577}, "unique_message_id is longer than 1 MiB"),
    ({"received_at_us": -1}, "received_at lies before the epoch or beyond the year 9999"),
]
REFUSED_BY_BATCHES = [
    ({"body_digest": b"\xff"}, "body_digest is of a wrong type, or too large"),
    ({"body_digest": 7}, "body_digest is of a wrong type, or too large"),
    ({"received_at_us": None}, "received_at is missing"),
    ({"received_at_us": LATEST_US + 1}, "received_at lies before the epoch or beyond the year 9999"),
    ({"received_at_us": 1 << 64}, "received_at is of a wrong type, or too large"),
    ({"jms_timestamp_ms": -5}, "jms_timestamp lies before the epoch or beyond the year 9999"),
    ({"redelivered": "yes"}, "jms_redelivered is of a wrong type, or too large"),
]


@pytest.mark.parametrize(("bad", "reason"), FROM_BATCHES)
def test_what_no_log_can_hold_is_dropped_alone(tmp_path, bad, reason):
    with Recorder(tmp_path) as recorder:
        record(recorder, [receipt(0), receipt(1, **bad), receipt(2), receipt(3, **bad)])
        record(recorder, [receipt(4, **bad)])
    assert ids(read(tmp_path)) == ["id-0", "id-2"]
    assert (recorder.written, recorder.dropped, recorder.last_error) == (2, 3, reason)


@pytest.mark.parametrize(("bad", "reason"), FROM_BATCHES + REFUSED_BY_BATCHES)
def test_what_no_log_can_hold_is_known_with_its_reason(bad, reason):
    assert problems_of([receipt(0), receipt(1, **bad)], Channel()) == {1: reason}


@cases()
@given(st.lists(st.booleans(), max_size=40))
def test_the_bad_are_told_from_the_good(goods):
    receipts = [receipt(number, body_digest=None if good else "\ud800") for number, good in enumerate(goods)]
    rows = recordable(receipts, Channel())
    assert rows["unique_message_id"].to_pylist() == [f"id-{number}" for number, good in enumerate(goods) if good]
    assert list(problems_of(receipts, Channel())) == [number for number, good in enumerate(goods) if not good]


@pytest.mark.parametrize("bad", [{"jms_timestamp_ms": -5}, {"received_at_us": LATEST_US + 1}])
def test_a_packed_receipt_that_no_log_can_hold_is_left_out_alone(bad):
    """No receiver packs one."""
    plain = [(number, START_US, None, None, f"id-{number}", None, None) for number in (0, 2)]
    batch = unpacked(packed(plain, [(1, receipt(1, **bad)), (3, receipt(3))], Channel()).data)
    (rows,) = rows_of([batch, batch])
    assert rows["unique_message_id"].to_pylist() == ["id-0", "id-2", "id-3"] * 2


def test_times_stay_as_read(tmp_path):
    """A clock that was set back is the reader's to judge."""
    times = [START_US, START_US - 5_000_000, 0, 5, START_US]
    with Recorder(tmp_path) as recorder:
        record(recorder, [receipt(0, received_at_us=at_us) for at_us in times])
    assert [each.received_at_us for each in read(tmp_path)] == times
