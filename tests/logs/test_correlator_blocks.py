"""Reading by the block gives the same messages as reading line by line, whatever the log holds."""

from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_correlator import STATUS, message

from receiver.errors import LogFormatError
from receiver.logs import LogSource, ReadOptions, correlator
from tests.choosing import cases

TIME = "2017-03-05 18:17:36.091"
RECEIVED = " INFO  [1:R] - 'r' has received JMS message:"
WHOLE = [
    message("a"),
    message("a", name="other", source="s2"),
    message("b", body=None),
    message("c", body='"two\nlines"'),
    message("d", body="<bytes>", more="   Property.Body=no body\n   Property.uniqueMessageId=second"),
    message("caf\u00e9", body='"\u0663\n\u0662"'),
    message("a\nb"),
    message("e", body='"never closed'),
    message("\udcff"),
    message("f", body='"\udcff"'),
    message("k", body='"\nnever closed'),
    message("l", name="\udcff"),
    message("g", jms=False, body=None),
    STATUS,
    "2017-03-05 18:17:36.091 INFO  [1:R] - started\n",
]
LINES = [
    TIME + RECEIVED, TIME + RECEIVED + " ", TIME + RECEIVED + " text", TIME + RECEIVED + " Property.uniqueMessageId=h",
    TIME + RECEIVED + ' Body="open', TIME + RECEIVED + ' Body="closed"', TIME + RECEIVED + " Property.=x",
    TIME + " INFO  [1:R=2] - 'r' has received JMS message: JMSTimestamp=1", TIME + " IN=FO  [1:R] - x",
    TIME + " INFO  [1:R] - 'a=b' has received JMS message:", TIME + " INFO [1] x] - 'a] - 'b' has received JMS message:",
    TIME + " INFO  [1:R] - a=b", TIME + " INFO\u00a0[1:R] - a", TIME + " \u00a0 [1:R] - a", TIME + " no entry", TIME,
    TIME.replace(".", ",") + RECEIVED, TIME.replace(".", "-") + RECEIVED, TIME.replace("03-05", "02-30") + RECEIVED,
    TIME.replace("7", "\u0667") + RECEIVED, TIME.replace("2017", "\u0662017") + RECEIVED, "\u00b2017-03-05",
    TIME[:22] + RECEIVED, TIME[:-1] + "=" + RECEIVED, TIME.replace("18:", "18=") + RECEIVED,
    TIME.replace("2017-03-05", "2017-03-26").replace("18:", "02:") + RECEIVED,
    "   Property.uniqueMessageId=i", "   Property.uniqueMessageId=", "   Property.uniqueMessageId", "   JMSRedelivered=true",
    "   JMSRedelivered=perhaps", "   JMSTimestamp=-1", "   JMSDestination=Queue<q>\r", "   Property.header: time=x",
    "   Property.a\u00e9b=x", "   a\u00e9b=x", "   1a=x", "   =x", "   ", "  Property.messageSourceId=no", " \tmessageSourceId=x",
    "    Property.messageSourceId=deep", '   Body="x"', '   Body="', '   Body=""', "   Body=<x>", '   Body="x" ', '   Body="x',
    "  -JMSTimestamp=1", " --Property.uniqueMessageId=no", "   JMSRedelivered=\udcff", "   JMSTimestamp=\udcff",
    TIME + " IN=FO  [1:R] - 'r' has received JMS message: Property.uniqueMessageId=j",
    '"', 'end"', "", "=", "text", "\r", '"\r', "\udcff", "   Property.key=k", "   Property.key=\udcff",
]  # fmt: skip


def outcome(data, options, cuts):
    """The rows, the other things that were read, and the error if there is one."""
    borders = [0, *sorted(cuts), len(data)]
    pieces = (data[start:stop] for start, stop in pairwise(borders) if start < stop)
    skipped, batches, error = [], [], ""
    options = ReadOptions(on_skipped=lambda *row: skipped.append(row), **options)
    try:
        for batch in correlator.read_correlator(LogSource("log", pieces), options):
            names = [name for name in batch.__slots__ if name not in {"status_lines", "time_unit", "skipped"}]
            columns = {name: values.tolist() for name in names if (values := getattr(batch, name)) is not None}
            batches.append((columns, batch.status_lines, batch.skipped))
    except LogFormatError as refused:
        error = f"{refused} {refused.hint}"
    return batches, skipped, error


def by_lines(self, block):
    self.know_ending(block)
    self.take(block.line, block.data.decode(errors="surrogateescape"))
    return self.rows()


OPTIONS = [
    {},
    {"on_error": "skip"},
    {"on_error": "skip", "column_map": {"unique_message_id": "key"}},
    {"on_error": "skip", "column_map": {"body_digest": "header: time"}, "time_zone": "Europe/Paris"},
    {"on_error": "skip", "column_map": {"message_source_id": "Body"}},
]
parts = st.sampled_from(WHOLE) | st.sampled_from(LINES).map(lambda line: line + "\n")


@cases(400)
@given(
    st.tuples(st.sampled_from(["", message("first")]), st.lists(parts, max_size=14), st.integers(0, 2)),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(OPTIONS),
    st.sampled_from([1, 50, 400, 4_000]),
    st.lists(st.integers(0, 2_000), max_size=20),
)
def test_by_the_block_as_line_by_line(log, line_break, options, block_bytes, cuts):
    first, others, cut_off = log
    text = first + "".join(others)
    data = text.replace("\n", line_break).encode(errors="surrogateescape")
    data = data[: len(data) - cut_off]
    cuts = [cut for cut in cuts if cut < len(data)]
    with mock.patch.multiple("receiver.logs.source", FIRST_BLOCK_BYTES=block_bytes, BLOCK_BYTES=block_bytes):
        by_blocks = outcome(data, options, cuts)
        with mock.patch.object(correlator._Parser, "read", by_lines):
            assert outcome(data, options, cuts) == by_blocks


@pytest.mark.parametrize(
    "more", ["", STATUS, "text of no message\n", "2017-03-05 18:17:36.091 INFO  [1:R] - started\n"]
)
def test_plain_messages_are_not_read_line_by_line(more):
    """Otherwise the property above would compare nothing."""
    data = "".join([message(str(number), body='"two\nlines"') + more for number in range(50)]).encode()
    with mock.patch.object(correlator._Parser, "_more") as line_of_a_message:
        (columns, _status_lines, _skipped), *_ = outcome(message("first").encode() + data, {}, [])[0]
    assert len(columns["unique_message_id"]) == 51
    assert line_of_a_message.call_count < 10
