"""JMSTimestamp in the unit that the broker uses."""

import time
from dataclasses import replace

import pytest

from receiver.logs import ReadOptions, read_logs
from tests.bridge.bridged import message, open_from

pytestmark = pytest.mark.usefixtures("hasty")

NOW_SECS = int(time.time())
LATEST_MS = 253_402_300_799_999


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "JMSTimestamp" in record.getMessage()]


def figures_of(route, *times):
    """rMaxDeliverySecs and the recorded send times of a bridge, for messages that were sent at these times and are
    redelivered."""
    for number, sent in enumerate(times):
        route.send(replace(message(str(number)), jms_timestamp_ms=sent, redelivered=True))
    log = route.file.parent / "receipts.jsonl.zst"
    bridge = open_from(route, lambda: route.broker.source("orders"), record=str(log))
    bridge.run(stop_when_idle_secs=0)
    recorded = [sent for batch in read_logs([str(log)], ReadOptions()) for sent in batch.jms_timestamp_ms.tolist()]
    return bridge.receiver.figures().rMaxDeliverySecs, recorded


def test_seconds_are_read_as_such_and_that_is_said_once(route, caplog):
    now_secs = int(time.time())  # the module's own time may be old by now
    sent = [now_secs - 60, now_secs - 90, now_secs - 30]
    longest_secs, recorded = figures_of(route, *sent)
    assert 90 <= longest_secs < 600
    assert recorded == [secs * 1_000 for secs in sent]
    (said,) = warnings(caplog)
    assert f"JMSTimestamp {now_secs - 60} " in said
    assert "read as seconds" in said


def test_milliseconds_are_what_they_are(route, caplog):
    sent = [(NOW_SECS - 60) * 1_000 + 7, 10**11]
    _, recorded = figures_of(route, *sent)
    assert recorded == sent
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    "sent",
    [1, 10**9 - 1, LATEST_MS + 1, NOW_SECS * 10**6, NOW_SECS * 10**9, -5],
    ids=["1 ms", "2001", "10000", "now in us", "now in ns", "negative"],
)
def test_what_can_be_neither_is_left_out(route, caplog, sent):
    assert figures_of(route, sent, sent) == (0.0, [0, 0])
    (said,) = warnings(caplog)
    assert "left out" in said


@pytest.mark.parametrize("sent", [None, 0])
def test_none_is_none(route, caplog, sent):
    assert figures_of(route, sent) == (0.0, [0])
    assert warnings(caplog) == []


@pytest.mark.parametrize("sent", [10**9, 10**11 - 1])
def test_the_range_of_seconds(route, sent):
    assert figures_of(route, sent)[1] == [sent * 1_000]
