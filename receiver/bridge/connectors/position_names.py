"""How the sources of Kafka and of streams name their positions, for them and for whoever shows what a store has."""

from __future__ import annotations

import re
from typing import NamedTuple

_OF_KAFKA, _OF_STREAM = "{}?group={}", "stream/{}"
_KAFKA = re.compile(r"([^?/]+)\?group=(.+)", re.DOTALL)  # no topic has a ? in its name, nor a slash
_STREAM = re.compile(r"stream/(.+)", re.DOTALL)
STREAM_POSITION = "next"
"""The name of a stream's one position: the offset behind the last message taken, and behind a space a digest of that message."""


class NamedPosition(NamedTuple):
    """What a position is of, and the offset that is taken next. None: it isn't of that kind."""

    topic: str | None = None
    group: str | None = None
    partition: int | None = None
    stream: str | None = None
    next_offset: int | None = None


def of_kafka(topic: str, group: str | None) -> str:
    """What the positions of a topic's partitions are kept under; each has the partition's number for a name."""
    return _OF_KAFKA.format(topic, group)


def of_stream(name: str) -> str:
    """What the position of a stream is kept under."""
    return _OF_STREAM.format(name)


def position_named(source: str, name: str, position: str) -> NamedPosition:
    """What a position in a store says; nothing but None where it is of another source, such as one of the application's own."""
    offset = position.partition(" ")[0]
    if not offset.isdecimal():
        return NamedPosition()
    if name.isdecimal() and (kafka := _KAFKA.fullmatch(source)):
        return NamedPosition(topic=kafka[1], group=kafka[2], partition=int(name), next_offset=int(offset))
    if name == STREAM_POSITION and (stream := _STREAM.fullmatch(source)):
        return NamedPosition(stream=stream[1], next_offset=int(offset))
    return NamedPosition()
