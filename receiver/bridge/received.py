"""A message with what its receipt says of it: what targets get, and how it is kept in the inbox meanwhile."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

from receiver.bridge.connector import Property
from receiver.store.inbox import InboxRow

__all__ = ["Received"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_dumped = json.JSONEncoder(separators=(",", ":"), default=lambda value: {"base64": _base64(value)}).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
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

    @property
    def text(self) -> str:
        """The body as text; `UnicodeDecodeError` where it is none."""
        return self.body.decode()

    def row(self, place: int) -> InboxRow:
        return InboxRow(
            place=place,
            tries=0,
            unique_message_id=self.unique_message_id,
            message_source_id=self.message_source_id,
            received_at_us=self.received_at_us,
            redelivered=self.redelivered,
            jms_timestamp_ms=self.jms_timestamp_ms,
            destination=self.destination,
            message_id=self.message_id,
            properties=_dumped(dict(self.properties)),
            is_text=self.is_text,
            body=self.body,
        )

    @classmethod
    def of_row(cls, row: InboxRow) -> Received:
        return cls(
            unique_message_id=row.unique_message_id,
            message_source_id=row.message_source_id,
            received_at_us=row.received_at_us,
            redelivered=row.redelivered,
            jms_timestamp_ms=row.jms_timestamp_ms,
            destination=row.destination,
            message_id=row.message_id,
            properties={name: _read(value) for name, value in json.loads(row.properties).items()},
            body=row.body,
            is_text=row.is_text,
        )

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
            "properties": {name: _shown(value) for name, value in self.properties.items()},
        }
        if self.is_text:
            try:
                line["body"] = self.text
            except UnicodeDecodeError:
                line["body_base64"] = _base64(self.body)
        else:
            line["body_base64"] = _base64(self.body)
        return _dumped(line).encode() + b"\n"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _read(value: Any) -> Property:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value


def _shown(value: Property) -> Property:
    """JSON has no infinities, and no NaN."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _iso(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
