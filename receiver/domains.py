"""Names a receiver's duplicate detection domain (`dupDetectionDomainId`).

A name is made of one part, or of two joined by ":". Of two parts, the first gets "\\" before each ":" and "\\" in it, so that
different pairs of parts never make the same name. Names follow Apama's documentation of JMS duplicate detection. The escapes are
ours, and so is keeping a queue apart from a topic of the same name: merging two domains loses messages, splitting one doesn't.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from receiver.errors import SettingsError

_LOGGED_DESTINATION = re.compile(r"(Queue|Topic)<(.*)>", re.DOTALL)
_LOOKS_LIKE_DESTINATION = re.compile(r"\\*(?:queue|topic)://")
LONGEST_KEY = 16
"""The most letters that a KEY's name in a store may have."""
_TOPIC = "topic://"
_QUEUE = "queue://"


class Channel(NamedTuple):
    """The way in which a receipt came: exact texts, empty if not known."""

    connection_id: str = ""
    destination: str = ""
    receiver_id: str = ""

    def lacks(self, part: str) -> bool:
        """Whether the part of this name isn't known: it is empty, or a destination without a name."""
        text: str = getattr(self, part)
        return not text or (part == "destination" and destination_name(text) in {_QUEUE, _TOPIC})


PARTS = {part: f"{part.removesuffix('_id')}s" for part in Channel._fields}
"""The plural of each part, by the part's name."""


def destination_name(text: str) -> str:
    """The canonical form of a destination: `queue://orders` for `orders`, `queue://orders` and `Queue<orders>`.

    Empty text stays empty: it is a missing destination, not a queue without a name.
    """
    if not text or text.startswith((_QUEUE, _TOPIC)):
        return text
    logged = _LOGGED_DESTINATION.fullmatch(text)
    if logged:
        kind, name = logged.groups()
        return (_QUEUE if kind == "Queue" else _TOPIC) + name
    return _QUEUE + text


def _joined(first: str, second: str) -> str:
    escaped = first.replace("\\", "\\\\").replace(":", "\\:")
    return f"{escaped}:{second}"


def _by_receiver(channel: Channel) -> str:
    # Escaped if it looks like a destination, which may stand in the same part of another domain's name.
    escape = "\\" if _LOOKS_LIKE_DESTINATION.match(channel.receiver_id) else ""
    return _joined(channel.connection_id, escape + channel.receiver_id)


def _by_default(channel: Channel) -> str:
    destination = destination_name(channel.destination)
    if destination.startswith(_TOPIC) and channel.receiver_id:
        return _by_receiver(channel)
    return _joined(channel.connection_id, destination)


@dataclass(frozen=True, slots=True)
class DomainKey:
    """A rule that names the domain of each channel.

    `text` is the KEY as given, and is part of a domain's identity. `needs` are the parts that a channel must have, and the columns
    that a log must have.
    """

    text: str
    needs: tuple[str, ...]
    name: Callable[[Channel], str]

    @property
    def kind(self) -> str:
        """Its name in a store, `name` for `name:TEXT`."""
        return self.text.partition(":")[0]

    def check(self, channel: Channel) -> None:
        """Raise `SettingsError` for a channel without a part that the KEY needs. Otherwise unrelated channels would share a
        domain, and messages of one would be dropped because another has sent their id."""
        lacking = [part for part in self.needs if channel.lacks(part)]
        if lacking:
            option = "" if lacking[0] == "destination" else f" (--{lacking[0].replace('_', '-')})"
            raise SettingsError(
                f"the domain key '{self.text}' needs a {lacking[0]}, and there is none",
                hint=f"give one{option}, or take another domain key, such as name:TEXT",
            )


DOMAIN_KEYS: dict[str, DomainKey] = {
    key.text: key
    for key in (
        DomainKey("default", ("connection_id", "destination"), _by_default),
        DomainKey("destination", ("destination",), lambda channel: destination_name(channel.destination)),
        DomainKey("connection", ("connection_id",), lambda channel: channel.connection_id),
        DomainKey("receiver", ("connection_id", "receiver_id"), _by_receiver),
    )
}


def domain_key(text: str) -> DomainKey:
    """The rule for a KEY: `default`, `destination`, `connection`, `receiver`, or `name:TEXT` for one custom domain."""
    if text.startswith("name:"):
        name = text.removeprefix("name:")
        if not name:
            raise SettingsError("the domain key 'name:' has no name", hint="write name:TEXT, as in name:payments")
        return DomainKey(text, (), lambda _channel: name)
    if text not in DOMAIN_KEYS:
        known = ", ".join(DOMAIN_KEYS)
        raise SettingsError(f"unknown domain key {text!r}", hint=f"one of {known}, or name:TEXT")
    return DOMAIN_KEYS[text]
