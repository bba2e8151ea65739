"""Frames are the same however the network parts them. A frame that is refused spoils none behind it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.bridge.connectors.stomp_message import Frame, FrameReader
from receiver.errors import BrokerError

MOST_BYTES = 20
BODIES = st.binary(max_size=MOST_BYTES)
TEXTS = st.text("ab\n:é", max_size=8).map(str.encode)
BETWEEN = st.sampled_from([b"", b"\n", b"\r\n", b"\n\n\n"])


def with_length(body):
    return b"MESSAGE\nmessage-id:1\ncontent-length:%d\n\n%b\0" % (len(body), body)


def without_length(body):
    return b"MESSAGE\r\nmessage-id:1\r\n\r\n%b\0" % body


def message(body, **headers):
    return Frame("MESSAGE", {"message-id": "1", **headers}, body)


# The bytes that are sent, and the frames that are read from them; no frame if they are refused.
GOOD = st.one_of(
    BODIES.map(lambda body: (with_length(body), message(body, **{"content-length": str(len(body))}))),
    TEXTS.map(lambda body: (without_length(body), message(body))),
    st.just((b"RECEIPT\nreceipt-id:7\n\n\0", Frame("RECEIPT", {"receipt-id": "7"}))),
)
BAD = st.sampled_from(
    [
        with_length(bytes(MOST_BYTES + 1)),
        without_length(b"a" * 3 * MOST_BYTES),
        b"MESSAGE\nmessage-id:1\nid:a\0b\n\n\0",
        b"MESSAGE\nmessage-id:1\nid:\xff\n\nabc\0",
        b"MESSAGE\nmessage-id:1\nid:a\\tb\n\nabc\0",
        b"MESSAGE\nmessage-id:1\nid:a\nb\n\nabc\0",
    ]
).map(lambda sent: (sent, None))


def read_all(pieces):
    """The frames that were read, and the reasons why others were refused."""
    refused, coming = [], iter(pieces)
    reader = FrameReader(lambda: next(coming, b""), refused.append, max_body_bytes=MOST_BYTES)
    frames = list(iter(reader.read, None))
    read = [frame for frame in frames if frame.refused is None]
    return read, refused + [frame.refused for frame in frames if frame.refused is not None]


@given(frames=st.lists(st.tuples(st.one_of(GOOD, BAD), BETWEEN), max_size=6), size=st.integers(1, 9))
def test_frames_are_cut_alike_from_pieces_of_any_size(frames, size):
    sent = b"".join(sent + between for (sent, _), between in frames)
    read, refused = read_all([sent[start : start + size] for start in range(0, len(sent), size)])
    assert read == [frame for (_, frame), _ in frames if frame is not None]
    assert len(refused) == len(frames) - len(read)


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@given(headers=st.dictionaries(TEXT.filter(bool), TEXT), body=BODIES)
def test_what_is_made_is_read_as_it_was(headers, body):
    """No two ids become one, whatever characters they have."""
    frame = Frame("MESSAGE", {**headers, "content-length": str(len(body))}, body)
    assert read_all([frame.encoded()]) == ([frame], [])


def test_of_a_header_that_comes_twice_the_first_counts():
    (frame,), _ = read_all([b"MESSAGE\nid:new\nid:old\n\n\0"])
    assert frame.headers == {"id": "new"}


@pytest.mark.parametrize("said", [rb"no C:\temp", b"no \xff"])
def test_an_error_is_shown_whatever_it_says(said):
    (frame,), refused = read_all([b"ERROR\nmessage:" + said + b"\n\n\0"])
    assert (frame.command, frame.headers) == ("ERROR", {"message": said.decode(errors="replace")})
    assert refused == []


@pytest.mark.parametrize("length", [b"", b"\ncontent-length:99"])
def test_an_error_may_be_larger_than_a_message(length):
    assert read_all([b"ERROR\nmessage:no" + length + b"\n\n", b"a" * 99, b"\0"])[0][0].body == b"a" * 99


def test_a_length_of_thousands_of_digits_is_a_large_body():
    assert len(read_all([b"MESSAGE\nmessage-id:1\ncontent-length:" + b"9" * 5_000 + b"\n\na\0"])[1]) == 1


def test_a_large_body_is_refused_before_it_is_there():
    refused = []
    reader = FrameReader(
        iter([b"MESSAGE\nmessage-id:77\ncontent-length:1073741824\n\n", b""]).__next__, refused.append, max_body_bytes=9
    )
    assert reader.read() is None
    (error,) = refused
    assert "77" in error.message
    assert "1,073,741,824" in error.message
    assert "--max-body-bytes" in error.hint


@pytest.mark.parametrize(
    ("text", "size"),
    [(b"b\0c\0\0d", 1), (b"b\0c\0\0d", 2), (b"b\0c\0\0d", 99), (b"b\0\nc\0\n\0d", 99)],
)
def test_a_zero_byte_in_a_text_of_classic_is_refused(text, size):
    """Otherwise half of the text would be a message, and the rest no frame: the message came for ever."""
    receipt = b"RECEIPT\nreceipt-id:7\n\n\0\n"
    sent = b"".join([without_length(b"a"), b"\n", without_length(text), b"\n", with_length(b"e\0"), b"\n", receipt])
    refused, pieces = [], iter([sent[start : start + size] for start in range(0, len(sent), size)])
    reader = FrameReader(lambda: next(pieces, b""), refused.append, max_body_bytes=MOST_BYTES)
    reader.ends_lines = True
    assert [frame.body for frame in iter(reader.read, None)] == [b"a", b"e\0", b""]
    assert ["message 1: STOMP ends its text at a zero byte" in str(error) for error in refused] == [True]


def test_a_large_body_without_a_length_is_skipped():
    """The connection goes on, so that messages before it can be acknowledged."""
    large = without_length(b"a" * 999)
    read, refused = read_all([without_length(b"a"), large[:500], large[500:600], large[600:] + without_length(b"b")])
    assert read == [message(b"a"), message(b"b")]
    assert len(refused) == 1


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\0\1\0\0", b"\x15\x03\x01", b"SEND\n\n\0", b"RECEIPT\ncontent-length:1\n\nabc"]
)  # fmt: skip
def test_what_is_no_stomp_is_said_to_be_none(said):
    with pytest.raises(BrokerError, match=r"STOMP|doesn't end"):
        read_all([said])


@pytest.mark.parametrize("said", [b"", b"\n\n", b"MESS", b"MESSAGE\na:b\n", with_length(b"abc")[:-1]])
def test_half_a_frame_is_none(said):
    assert read_all([said]) == ([], [])
