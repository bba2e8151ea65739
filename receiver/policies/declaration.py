"""What is known of a policy beside its rule: each states all of it once, above its class.

Tables, help, comparisons, stores and bridges ask the declaration, and none of them knows a policy by name. What it leaves
out fails at import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum, StrEnum, auto
from typing import Any, NamedTuple, Self

__all__ = [
    "LONGEST_KIND",
    "Cause",
    "Clock",
    "Declaration",
    "Limit",
    "Misses",
    "Parameter",
    "Refusal",
    "Use",
    "Vendor",
]

LONGEST_KIND = 16
"""Letters that a store's column has for it."""


class Parameter(NamedTuple):
    """One of a policy's parameters, as it is written in `NAME:parameter=value`."""

    name: str
    argument: str
    """The same for Python, and its unit: a time is written in seconds and passed on as whole microseconds, in `..._us`;
    anything else is a count."""
    default: Callable[[], int] | None = None
    """Asked for the vendor's when it is needed, for it may stand in settings; None: there is none, it must be given."""

    @property
    def is_time(self) -> bool:
        return self.argument.endswith("_us")


class Vendor(NamedTuple):
    """Systems that go by the rule, and the sizes at which a comparison tries it unasked."""

    systems: tuple[str, ...]
    """By the names that people know; none for what is nobody's."""
    sizes: str = ""
    """As in a policy's text; empty: its defaults."""
    sizes_are_ours: bool = False
    """The vendor states none."""
    remark: str = ""
    aliases: tuple[str, ...] = ()
    """What people write who know the system and not the rule's name here, in lower case."""

    def __str__(self) -> str:
        return ", ".join(filter(None, (*self.systems, self.remark)))


class Cause(StrEnum):
    """Why a policy misses a duplicate, or calls a first receipt one."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        cause = str.__new__(cls, value)
        cause._value_ = value
        cause.meaning = meaning
        return cause

    EVICTED = "evicted", "newer ids had taken its place"
    """It would have taken more places to keep it."""
    EXPIRED = "expired", "it was older than the policy keeps ids"
    NOT_REFRESHED = (
        "not refreshed",
        "evicted or expired, as it counts from its first receipt; from its latest it would still be kept",
    )
    OTHER_ORIGIN = "other origin", "the last id came from another broker or site, and can't be compared with it"
    """Or was set back by one that does."""
    SEQUENCE_GAP = (
        "sequence gap",
        "not above the highest number seen, though it never came before: it came late, counting began anew, or several "  # noqa: ISC004 - a pair
        "senders count under one name",
    )
    """Or a number that came before in other digits."""


class Limit(Enum):
    """What bounds how long an id is remembered after its first receipt, where duplicates don't refresh it."""

    AGE = auto()
    """Its expiry."""
    ACCEPTED = auto()
    """As many ids as it has places, accepted after it."""


class Misses(NamedTuple):
    """Why a policy misses duplicates."""

    cause: Cause
    without_expiry: Cause | None = None
    """The cause where its expiry is 0, if that is another."""
    limit: Limit | None = None
    """Which of these the newest earlier receipt must be within for the cause to be `NOT_REFRESHED`; None: never."""


class Use(StrEnum):
    """Where a policy may be asked for, as refusals say it."""

    COMPARISON = "compared"
    BRIDGE = "bridged"
    RECEIVER = "made durable"


class Refusal(NamedTuple):
    """A use that a policy isn't fit for, and why not."""

    use: Use
    reason: str
    """Behind "can't be compared, for "."""
    hint: str


class Clock(Enum):
    """What moves the time by which a policy forgets, where its rows alone don't tell it (`Policy.clock_us`)."""

    RECEIPTS = auto()
    """A receipt that has entered its time queue: it is never ahead of the latest one."""
    TOLD = auto()
    """Whoever uses it, at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """All that is known of a policy; nothing is left out by default, and None says that there is none.

    TypeError names the policy and what is missing or can't be meant.
    """

    name: str
    """What `policy(text)` knows it by."""
    kind: str
    """What a store knows it by: like `name`, but another where a domain can't go on from one to the other."""
    order: int
    """Where it stands among the others in tables, lists and help."""
    parameters: tuple[Parameter, ...]
    vendors: tuple[Vendor, ...]
    names_its_system: bool
    """Whether its name says whose rule it is, so that tables and help needn't."""
    records_duplicates: bool
    """Whether a duplicate refreshes what is remembered, as with Apama; else only first receipts matter."""
    keeps_ids: bool
    """Whether each id is remembered by itself, rather than one that stands for many."""
    goes_by_send_time: bool
    """Whether it matters when a message was sent, so that `receive` takes `jms_timestamp_ms` too."""
    clock: Clock | None
    misses: Misses | None
    """Why duplicates are let through; None: they never are."""
    false_cause: Cause | None
    """Why an id that never came before is called a duplicate; None: it never is."""
    memory_bytes_per_id: int | None
    """Measured by `python -m benchmarks memory`; None: in `settings.yaml`, by the policy's name."""
    twin: str | None
    """Its compiled twin, by the name in `receiver.compare.twins`; None where it is refused for comparisons."""
    refusals: tuple[Refusal, ...]

    def __new__(cls, **facts: Any) -> Self:
        # The dataclass would name the class, and not the policy.
        missing = [field.name for field in fields(cls) if field.name not in facts]
        if missing:
            raise TypeError(f"policy {facts.get('name') or facts.get('kind')} does not declare {', '.join(missing)}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        is_refused = any(refusal.use is Use.COMPARISON for refusal in self.refusals)
        for is_right, rule in (
            (0 < len(self.kind) <= LONGEST_KIND, f"a kind of 1 to {LONGEST_KIND} letters, which a store has room for"),
            ((self.twin is None) == is_refused, "either a twin or, in refusals, why it can't be compared"),
            (self.twin is None or self.vendors, "in vendors, the sizes at which a comparison tries it"),
            ((self.false_cause is None) == self.keeps_ids, "a false_cause if it doesn't keep each id, and only then"),
        ):
            if not is_right:
                raise TypeError(f"policy {self.name} must declare {rule}")
