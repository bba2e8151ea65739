"""What can be broken in a store, and what is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple, Self

from receiver.store.tables import DomainState

__all__ = ["PROBLEMS", "DomainName", "Finding", "Findings"]

PROBLEMS = {
    "damaged": "the database finds damage in itself",
    "unreadable": "what is stored can't be read",
    "keys": "a table has lost a constraint",
    "strays": "rows belong to no domain, or messages to no target",
    "same-domain": "two domains have the same key and name, or the same incarnation",
    "types": "a value is missing, or of another type than its column's",
    "name": "no receiver makes this key and name",
    "settings": "no receiver can have these settings",
    "negative": "what counts from 0 is negative",
    "counters": "counters contradict each other",
    "clocks": "clocks contradict each other",
    "marks": "a batch in its caller's transaction left numbers that it can't have had",
    "numbers": "receipts have numbers that were never given",
    "order": "time runs backwards from one receipt to the next",
    "ids": "ids or sources are empty, no text, or not what the policy goes by",
    "first-times": "ids first came after they came again, or before all time",
    "digests": "body digests are no list of different texts",
    "retired": "rows tell of a retired source what no receiver writes",
    "newest": "the newest receipt isn't there, or came at another time than the domain's latest",
    "targets": "a target has no name, or what is noted of its file contradicts itself",
    "messages": "messages that wait or are parked make no sense, or do both at once",
    "rebuilt": "what the receipts that are left make remembered contradicts the domain's own row",
}
"""What can be broken, by kind."""


class DomainName(NamedTuple):
    """What a domain is known by, as text that can be shown even where it is broken."""

    key: str
    name: str

    @classmethod
    def of(cls, state: DomainState) -> Self:
        return cls(state.domain_key, state.domain_name)


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of damage in one domain, or in the store as a whole."""

    kind: str
    """One of `PROBLEMS`."""
    domain: DomainName | None
    """None: in the store as a whole."""
    count: int
    """How many times."""
    example: str
    """The first of them."""

    @property
    def problem(self) -> str:
        return PROBLEMS[self.kind]


class Findings:
    """What is broken: of each kind and domain how many times, and the first example."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, DomainName | None]] = Counter()
        self._examples: dict[tuple[str, DomainName | None], str] = {}

    def add(self, kind: str, domain: DomainName | None, example: str, count: int = 1) -> None:
        self._counts[kind, domain] += count
        self._examples.setdefault((kind, domain), example)

    def any_in(self, domain: DomainName) -> bool:
        """Whether anything is broken in this domain."""
        return any(known == domain for _, known in self._counts)

    def all(self) -> tuple[Finding, ...]:
        return tuple(Finding(*key, count, self._examples[key]) for key, count in self._counts.items())
