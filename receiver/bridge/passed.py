"""The mark on what a bridge sends to a broker: the domains that a message has passed, by which a ring of bridges is noticed.

Without it what comes round would be a duplicate, and be dropped. A domain is told by the number that no other has in any
store, for a name may be any text, and the same in two stores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from receiver.bridge.connector import Property

__all__ = ["PASSED", "Passed"]

PASSED = "receiverPassedDomains"
"""The property, a name that JMS allows too, for selectors."""
_MOST = 64
"""So many numbers, and no more than 1,087 characters."""
_NUMBER = re.compile("[0-9a-f]{1,16}")


class Passed:
    """The marks that one domain reads and makes."""

    def __init__(self, domain_number: int) -> None:
        self._own = f"{domain_number:x}"

    def problem(self, properties: Mapping[str, Property]) -> str | None:
        """Why a message with these properties goes round in a ring; None if it doesn't."""
        numbers = _numbers(properties)
        if self._own in numbers:
            return "it has come back to a domain that it has passed: bridges form a ring"
        if len(numbers) >= _MOST:
            return f"it has passed {len(numbers)} domains, and no more than {_MOST} are marked: bridges may form a ring"
        return None

    def mark(self, properties: Mapping[str, Property]) -> str:
        """The mark of a message with these properties once it has passed this domain too."""
        before = [number for number in _numbers(properties) if number != self._own]
        return ",".join([*before, self._own][-_MOST:])


def _numbers(properties: Mapping[str, Property]) -> list[str]:
    mark = properties.get(PASSED)
    return [] if not isinstance(mark, str) else [number for number in mark.split(",") if _NUMBER.fullmatch(number)]
