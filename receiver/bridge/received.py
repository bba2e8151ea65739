"""A message with what its receipt says of it: what targets get, and how it is kept in the inbox meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

from receiver.bridge.connector import Property
from receiver.store.tables import InboxRow, base64_of, dumped

__all__ = ["Received"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IN_THE_INBOX_ONLY = {"sequence", "tries"}
_KEPT = tuple(name for name in InboxRow._fields if name not in _IN_THE_INBOX_ONLY)


class Received(NamedTuple):
    """One message as a bridge hands it on."""

    unique_message_id: str | None
    """None where it has none: then nothing could be checked."""
    message_source_id: str | None
    received_at_us: int
    """Microseconds since 1970."""
    redelivered: bool
    """JMSRedelivered."""
    jms_timestamp_ms: int | None
    destination: str
    """`queue://NAME` or `topic://NAME`."""
    message_id: str | None
    """The broker's own name for it (JMSMessageID)."""
    properties: Mapping[str, Property]
    body: bytes
    is_text: bool
    headers: Mapping[str, str] = MappingProxyType({})
    """JMSCorrelationID, JMSReplyTo and JMSType, each where it's set."""
    place: int | None = None
    """In the inbox: a number that no other message of the domain ever has. None where it isn't kept there."""

    @property
    def text(self) -> str:
        """The body as text; `UnicodeDecodeError` where it is none."""
        return self.body.decode()

    def at(self, place: int) -> Received:
        """The same, at a place in the inbox."""
        return Received(*self[:-1], place)

    def row(self, place: int) -> InboxRow:
        return InboxRow(sequence=place, tries=0, **{name: getattr(self, name) for name in _KEPT})

    @classmethod
    def of_row(cls, row: InboxRow) -> Received:
        return cls(place=row.sequence, **{name: getattr(row, name) for name in _KEPT})

    def json_line(self) -> bytes:
        """As a line of JSON: the columns of a log of receipts, the properties and the body.

        What isn't text is in base64. All of it is ASCII, so that text of any kind comes back as it was.
        """
        line: dict[str, Any] = {
            "unique_message_id": self.unique_message_id,
            "message_source_id": self.message_source_id,
            "received_at": _iso(self.received_at_us),
            "jms_redelivered": self.redelivered,
            "destination": self.destination,
            **({"headers": dict(self.headers)} if self.headers else {}),
            "properties": {name: _shown(value) for name, value in self.properties.items()},
        }
        if self.is_text:
            try:
                line["body"] = self.text
            except UnicodeDecodeError:
                line["body_base64"] = base64_of(self.body)
        else:
            line["body_base64"] = base64_of(self.body)
        return dumped(line).encode() + b"\n"


def _shown(value: Property) -> Property:
    """JSON has no infinities, and no NaN."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _iso(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
