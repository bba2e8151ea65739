"""The mark on what a bridge sends to a broker: the domains that a message has passed, by which a ring of bridges is noticed.

Without it, what comes back would be dropped as a duplicate. The mark has one number per domain: a hash of the message's
id, keyed by the domain's incarnation, which no other domain has in any store, while names may repeat. The id is hashed in
because an application may copy the mark to a message of its own, which has passed nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b

from receiver.bridge.connector import Property
from receiver.store.tables import to_bytes

__all__ = ["PASSED", "Passed"]

PASSED = "receiverPassedDomains"
"""The property, by a name that JMS allows too, for selectors."""
_MOST_NUMBERS = 64
"""The newest 64 numbers are kept: at most 1,087 characters. A longer ring isn't noticed."""
_NUMBER = re.compile("[0-9a-f]{16}")


class Passed:
    """The marks that one domain reads and makes."""

    def __init__(self, incarnation: int) -> None:
        self._key = incarnation.to_bytes(8, "big")

    def has(self, id_: str | None, properties: Mapping[str, Property]) -> bool:
        """Whether a message with this id and these properties has passed the domain."""
        return PASSED in properties and self._number(id_) in _numbers(properties)

    def mark(self, id_: str | None, properties: Mapping[str, Property]) -> str:
        """The mark of such a message once it has passed this domain too."""
        own = self._number(id_)
        before = [number for number in _numbers(properties) if number != own]
        return ",".join([*before, own][-_MOST_NUMBERS:])

    def _number(self, id_: str | None) -> str:
        return blake2b(to_bytes(id_ or ""), digest_size=8, key=self._key).hexdigest()


def _numbers(properties: Mapping[str, Property]) -> list[str]:
    mark = properties.get(PASSED)
    return [] if not isinstance(mark, str) else [number for number in mark.split(",") if _NUMBER.fullmatch(number)]
