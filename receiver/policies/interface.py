"""What every policy can do, whatever its rule, and what is declared of each beside its rule.

Each policy states its declaration once, above its class. Tables, help, comparisons, stores and bridges ask the
declaration, and none of them knows a policy by name. What it leaves out fails at import.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from enum import Enum, StrEnum, auto
from inspect import signature
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

from receiver.errors import SettingsError
from receiver.message import Decision, Receipt, ReceiptValues
from receiver.quantities import exact_secs

LONGEST_KIND = 16
"""Letters that a store's column has for it."""


class Parameter(NamedTuple):
    """One of a policy's parameters, as it is written in `NAME:parameter=value`."""

    name: str
    argument: str
    """Its name in Python, which shows its unit: a time is written in seconds and passed on as whole microseconds, in `..._us`;
    anything else is a count."""
    default: Callable[[], int] | None = None
    """Returns the vendor's default, which may stand in settings; None: there is none, so a text must give it."""

    @property
    def is_time(self) -> bool:
        return self.argument.endswith("_us")


FOR_EVER = 2**63 - 1
"""The default of a memory that forgets nothing unless it is told to."""


class Setting(NamedTuple):
    """What a system lets its users size its memory of ids by: ids or microseconds, as the rule's limit has it."""

    name: str
    """As the system writes it; empty where nobody can set it."""
    source: str
    """The vendor's page that states it, its default and its limits."""
    least: int = 0
    most: int | None = None
    """None: no page states any."""
    remark: str = ""
    """What else whoever sets it has to know, as a sentence."""
    default: int | None = None
    """What holds unless it is set, where the `sizes` of the `Vendor` don't give it."""


class Vendor(NamedTuple):
    """Systems that go by the rule, and the sizes at which a comparison tries it unasked."""

    systems: tuple[str, ...]
    """The systems' names as people know them; empty for a rule that no system has."""
    sizes: str | None = ""
    """Written as in a policy's text; empty for its defaults. None: there are none, and a comparison tries none unasked."""
    sizes_are_ours: bool = False
    """Whether we chose the sizes, because the vendor states none."""
    is_tried: bool = True
    """Whether a comparison tries the sizes unasked."""
    remark: str = ""
    aliases: tuple[str, ...] = ()
    """What people write who know the system and not the rule's name here, in lower case."""
    setting: Setting | None = None
    """What a log can say how to set, by the rule's limit; None: nothing that anybody can set or has to know."""

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

    EVICTED = "evicted", "newer ids pushed it out"
    """It would have taken a larger memory to keep it."""
    EXPIRED = "expired", "it was older than the policy keeps ids"
    NOT_REFRESHED = (
        "not refreshed",
        "evicted or expired, because only its first receipt counts; from its latest it would still be kept",
    )
    OTHER_ORIGIN = "other origin", "the last id came from another broker or site, and can't be compared with it"
    """Or was set back by an id that does come from there."""
    SEQUENCE_GAP = (
        "sequence gap",
        "not above the highest number seen, though it never came before: it came late, counting began anew, or several "  # noqa: ISC004 - a pair
        "senders count under one name",
    )
    """Or a number that came before in other digits."""


class Limit(Enum):
    """What bounds how long an id is remembered, and so what a log can say how large to make."""

    ACCEPTED = auto()
    """The ids accepted since its first receipt; a repeat refreshes nothing."""
    USED = auto()
    """The different ids received since its latest receipt."""
    AGE = auto()
    """The time since its first receipt; a repeat refreshes nothing."""
    SOURCES = auto()
    """The sources that are remembered, each by its highest number."""


class Misses(NamedTuple):
    """Why a policy misses duplicates."""

    cause: Cause
    without_expiry: Cause | None = None
    """The cause where its expiry is 0, if that is another."""


class Use(StrEnum):
    """Where a policy may be asked for, as refusals say it."""

    COMPARISON = "compared"
    BRIDGE = "bridged"
    RECEIVER = "made durable"


class Refusal(NamedTuple):
    """A use that a policy isn't fit for, and why not."""

    use: Use
    reason: str
    """Behind "can't be compared, because "."""
    hint: str


class Clock(Enum):
    """What moves the time by which a policy forgets, where its rows alone don't show it (`Policy.clock_us`)."""

    RECEIPTS = auto()
    """A receipt that has entered its time queue: it is never ahead of the latest one."""
    CALLER = auto()
    """Whoever uses it, at any time, by a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """All that is known of a policy; nothing is left out by default, and None says that there is none.

    TypeError names the policy and what is missing or invalid.
    """

    name: str
    """The name that `policy(text)` takes."""
    same_rule_as: str | None
    """Another policy with the same rule, or None. A comparison that chooses its policies shows both as one row, under that
    name."""
    kind: str
    """The name that stores have for it: `name`, or another where a domain can't go on from one rule to the other."""
    order: int
    """Tables, lists and help show policies in ascending order of this."""
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
    limit: Limit | None
    """None: nothing bounds how long it remembers, or it is sized in another way."""
    misses: Misses | None
    """Why duplicates are let through; None: they never are."""
    false_cause: Cause | None
    """Why an id that never came before is called a duplicate; None: it never is."""
    memory_bytes_per_id: int | None
    """Measured by `python -m benchmarks memory`; None: in `settings.yaml`, by the policy's name."""
    compiled_policy: str | None
    """Its rule compiled, by the name in `receiver.compare.compiled_policies`; None where it is refused for comparisons."""
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
            (
                (self.compiled_policy is None) == is_refused,
                "either a compiled_policy or, in refusals, why it can't be compared",
            ),
            (self.compiled_policy is None or self.vendors, "in vendors, the sizes at which a comparison tries it"),
            (
                self.limit or not any(vendor.setting for vendor in self.vendors),
                "the limit that its vendors' settings size",
            ),
            ((self.false_cause is None) == self.keeps_ids, "a false_cause if it doesn't keep each id, and only then"),
        ):
            if not is_right:
                raise TypeError(f"policy {self.name} must declare {rule}")


_registered: list[type[Policy]] = []


class Declared(ABC):
    """What a class has by its declaration: its facts, and how its parameters are written and counted."""

    __slots__ = ()

    declaration: ClassVar[Declaration]
    name: ClassVar[str]
    kind: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]]
    records_duplicates: ClassVar[bool]
    keeps_ids: ClassVar[bool]
    goes_by_send_time: ClassVar[bool]

    @property
    @abstractmethod
    def values(self) -> tuple[int, ...]:
        """The values of its parameters, in their order."""

    @classmethod
    def of_sizes(cls, window: int, expiry_us: int) -> Self:
        """A policy with these sizes. Of several times, the first is all of the expiry."""
        sizes = {True: expiry_us, False: window}
        return cls(*(sizes.pop(parameter.is_time, 0) for parameter in cls.parameters))

    @property
    def sizes(self) -> tuple[int, int]:
        window, expiry_us = (
            sum(value for parameter, value in self._valued() if parameter.is_time is is_time)
            for is_time in (False, True)
        )
        return window, expiry_us

    def __str__(self) -> str:
        valued = [f"{each.name}={exact_secs(value) if each.is_time else value}" for each, value in self._valued()]
        return f"{self.name}:{','.join(valued)}" if valued else self.name

    def _valued(self) -> Iterator[tuple[Parameter, int]]:
        return zip(self.parameters, self.values, strict=True)


_AT_HAND = tuple(fact for fact in Declared.__annotations__ if fact != "declaration")


class Policy(Protocol):
    """A rule on what counts as a duplicate, applied to the receipts of one domain in order.

    Pure: no clock, no I/O. A receipt without id is unchecked and changes nothing, and time never runs backwards: a
    receipt from before the latest one counts as received with it. `str()` is the policy's canonical text.
    """

    declaration: ClassVar[Declaration]
    name: ClassVar[str]
    kind: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]]
    records_duplicates: ClassVar[bool]
    keeps_ids: ClassVar[bool]
    goes_by_send_time: ClassVar[bool]

    @classmethod
    def of_sizes(cls, window: int, expiry_us: int) -> Self:
        """A policy with these sizes."""

    @property
    def sizes(self) -> tuple[int, int]:
        """How many ids it keeps, and for how many microseconds; 0 for what doesn't bound it."""

    @property
    def policy_state(self) -> int | None:
        """What a row of the log must keep of the receipt just judged new, so that it can be replayed; None for most policies."""

    @property
    def latest_us(self) -> int:
        """The latest receipt's time."""

    @property
    def clock_clamped(self) -> int:
        """Receipts that came with a time before the latest one's."""

    @property
    def serial(self) -> int:
        """The number of the latest receipt with an id, which count from 1; 0 before there was any."""

    @property
    def remembered_ids(self) -> int:
        """How many distinct ids it remembers."""

    @property
    def peak_ids(self) -> int:
        """The most ids remembered after any receipt."""

    @property
    def clock_us(self) -> int | None:
        """The time that it forgets by, in microseconds, where that is no receipt's; None before it moved."""

    def __contains__(self, unique_message_id: str, /) -> bool:
        """Whether the next receipt of the id would be a duplicate, if it came with the latest one."""

    def receive(
        self,
        unique_message_id: str | None,
        message_source_id: str | None = None,
        *,
        received_at_us: int,
    ) -> Decision:
        """Decide on one receipt and record it.

        A duplicate's `age_us` and `distance` count from the receipt that makes it one. That is the newest receipt of its
        id if duplicates refresh it, else the one judged new. If `keeps_ids` is false, that one may have another id.
        `window_left` and `expiry_left_us` are None if neither a count nor a time bounds what is remembered.

        Raises:
            SettingsError: The receipt is invalid. Nothing has changed.
            IdFormatError: The policy can't judge such an id. Nothing has changed.
        """

    def receive_many(self, receipts: Iterable[Receipt | tuple[str | None, str | None, int]]) -> list[Decision]:
        """Decide on receipts in order, as `receive` does one by one."""

    def keep_forgotten(self) -> None:
        """From now on, keep the number of each entry that can't matter any more, for `take_forgotten`; drop those kept before."""

    def take_forgotten(self) -> list[int]:
        """The numbers kept since this was last asked for."""

    def entries(self) -> list[int]:
        """The numbers of the receipts that make up what is remembered, ascending."""

    def replay(self, entries: Iterable[ReceiptValues], clock_us: int | None, /) -> None:
        """Follow another policy of the same kind and sizes: record its entries that came after the latest one here.

        Entries that the other has forgotten since may be missing or not; `clock_us` is the other's. Afterwards both
        remember the same, and will give the same verdicts.
        """


_Rule = TypeVar("_Rule", bound=Policy)


def registered(declaration: Declaration) -> Callable[[type[_Rule]], type[_Rule]]:
    """Register a class as a policy; TypeError if its kind or order is taken, or its parameters aren't those declared."""

    def register(rule: type[_Rule]) -> type[_Rule]:
        declared = ", ".join(parameter.argument for parameter in declaration.parameters)
        taken = ", ".join(signature(rule).parameters)
        if declared != taken:
            raise TypeError(f"policy {declaration.name} has the parameters {declared}, but its class takes {taken}")
        for other in _registered:
            for fact in ("kind", "order"):
                if getattr(other.declaration, fact) == getattr(declaration, fact):
                    raise TypeError(f"policy {declaration.name} has the {fact} that {other.name} has")
        rule.declaration = declaration
        for fact in _AT_HAND:
            setattr(rule, fact, getattr(declaration, fact))
        _registered.append(rule)
        return rule

    return register


def registered_policies() -> tuple[type[Policy], ...]:
    """All that were imported so far, in their order."""
    return tuple(sorted(_registered, key=lambda rule: rule.declaration.order))


def check_size(name: str, value: Any) -> int:
    """The value of a policy's parameter as Python has it: a count, or microseconds; SettingsError if it can't be."""
    if value.__class__ is not int or value < 0:
        raise SettingsError(f"{name} must be a whole number of at least 0, not {value!r:.80}")
    return int(value)
