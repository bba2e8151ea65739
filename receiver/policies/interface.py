"""`Policy`, the interface of every policy; and `Declaration`, the facts about a policy besides its rule.

Each policy has one declaration, above its class. Tables, help, comparisons, stores and bridges use the declaration, and none
of them names a policy. A declaration that lacks a fact fails at import.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from inspect import signature
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

from receiver.errors import SettingsError
from receiver.message import Decision, Receipt, ReceiptValues
from receiver.quantities import exact_secs

_Rule = TypeVar("_Rule", bound="Policy")
LONGEST_KIND = 16
"""The most letters of a policy's `kind`: a store's column has room for these."""


class Parameter(NamedTuple):
    """One of a policy's parameters, as it is written in `NAME:parameter=value`."""

    name: str
    argument: str
    """Its name in Python. A time is written in seconds and passed on in whole microseconds, as `..._us`; others are counts."""
    default: Callable[[], int] | None = None
    """Returns the vendor's default, perhaps from settings. None: there is no default, so a text must give the value."""

    @property
    def is_time(self) -> bool:
        return self.argument.endswith("_us")


FOR_EVER = 2**63 - 1
"""The default of a memory that forgets nothing unless configured to."""


class Setting(NamedTuple):
    """The setting by which users of a system size its memory of ids: in ids or microseconds, as the rule's limit says."""

    name: str
    """The system's name for it; empty if users can't set it."""
    source: str
    """The vendor's page with the setting, its default and its limits."""
    least: int = 0
    most: int | None = None
    """The largest value; None: no page states one."""
    remark: str = ""
    """A sentence with anything else that users have to know."""
    default: int | None = None
    """The default, if the `sizes` of the `Vendor` don't give it."""


class Vendor(NamedTuple):
    """Systems that follow the rule, and the sizes at which a comparison tries it by default."""

    systems: tuple[str, ...]
    """The systems' names as people know them; empty for a rule that no system has."""
    sizes: str | None = ""
    """The sizes as in a policy's text; empty for its defaults. None: there are none, and no comparison tries it by default."""
    sizes_are_ours: bool = False
    """Whether we chose the sizes, because the vendor states none."""
    is_tried: bool = True
    """Whether a comparison tries the sizes by default."""
    remark: str = ""
    aliases: tuple[str, ...] = ()
    """Other names that people may write for the rule, in lower case."""
    setting: Setting | None = None
    """The setting that a log can size, by the rule's limit; None: there is none."""

    def __str__(self) -> str:
        return ", ".join(filter(None, (*self.systems, self.remark)))


class Explained(StrEnum):
    """Texts, each with its meaning."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        text = str.__new__(cls, value)
        text._value_ = value
        text.meaning = meaning
        return text


class Cause(Explained):
    """Why a policy misses a duplicate, or calls a first receipt a duplicate."""

    EVICTED = "evicted", "newer ids pushed it out"
    """A larger memory would have kept the id."""
    EXPIRED = "expired", "it was older than the policy keeps ids"
    NOT_REFRESHED = (
        "not refreshed",
        "evicted or expired, because only its first receipt counts; from its latest it would still be kept",
    )
    OTHER_ORIGIN = "other origin", "the last id came from another broker or site, and can't be compared with it"
    """Or an id of another origin has set the last id back."""
    SEQUENCE_GAP = (
        "sequence gap",
        "not above the highest number seen, though it never came before: it came late, counting began anew, or several "  # noqa: ISC004 - a pair
        "senders count under one name",
    )
    """Or the number came before, written with other digits."""


class Limit(Enum):
    """What bounds how long an id is remembered. A log shows how large it must be."""

    ACCEPTED = auto()
    """The number of ids accepted since the id's first receipt; a repeat refreshes nothing."""
    USED = auto()
    """The number of different ids received since the id's latest receipt."""
    AGE = auto()
    """The time since the id's first receipt; a repeat refreshes nothing."""
    SOURCES = auto()
    """The number of sources, of which each is remembered by its highest number."""


class Misses(NamedTuple):
    """Why a policy misses duplicates."""

    cause: Cause
    without_expiry: Cause | None = None
    """The cause if its expiry is 0, if that is a different one."""


class Use(StrEnum):
    """A use of a policy, in the words of refusals."""

    COMPARISON = "compared"
    BRIDGE = "bridged"


class Refusal(NamedTuple):
    """A use for which a policy isn't fit, and why not."""

    use: Use
    reason: str
    """The words that follow "can't be compared, because "."""
    hint: str


class Clock(Enum):
    """What moves the time by which a policy forgets, if its rows alone don't show that time (`Policy.clock_us`)."""

    RECEIPTS = auto()
    """A receipt that enters its time queue. So the clock is never ahead of the latest receipt."""
    CALLER = auto()
    """The application, at any time, by a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The facts about a policy, and the decorator of its class. Each fact must be stated; None says that there is none.

    `TypeError` for a fact that is missing or invalid.
    """

    name: str
    """The name that `policy(text)` takes."""
    same_rule_as: str | None
    """Another policy with the same rule, or None. A comparison that chooses its policies shows both in that one's row."""
    kind: str
    """The policy's name in stores: `name`, or another one if a domain can't continue from one rule with the other."""
    order: int
    """Tables, lists and help show policies in ascending order of this."""
    parameters: tuple[Parameter, ...]
    vendors: tuple[Vendor, ...]
    names_its_system: bool
    """Whether its name shows whose rule it is, so that tables and help needn't say so."""
    records_duplicates: bool
    """Whether a duplicate refreshes the memory of its id, as with Apama; otherwise only first receipts matter."""
    goes_by_send_time: bool
    """Whether the send time of a message matters, so that `receive` takes `jms_timestamp_ms` too."""
    clock: Clock | None
    limit: Limit | None
    """None: nothing bounds how long it remembers, or it is sized in another way."""
    misses: Misses | None
    """Why it misses duplicates; None: it never does."""
    false_cause: Cause | None
    """Why it calls an id a duplicate that never came before; None: it never does, for it remembers each id by itself."""
    compiled_policy: str | None
    """The name of its compiled rule in `receiver.compare.compiled_policies`; None if it is refused for comparisons."""
    refusals: tuple[Refusal, ...]

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
        ):
            if not is_right:
                raise TypeError(f"policy {self.name} must declare {rule}")

    @property
    def keeps_ids(self) -> bool:
        """Whether each id is remembered by itself; otherwise one id may stand for many."""
        return self.false_cause is None

    def __call__(self, rule: type[_Rule]) -> type[_Rule]:
        """Register the class as a policy; `TypeError` if its kind or order is taken, or its parameters aren't as declared."""
        declared = ", ".join(parameter.argument for parameter in self.parameters)
        taken = ", ".join(signature(rule).parameters)
        if declared != taken:
            raise TypeError(f"policy {self.name} has the parameters {declared}, but its class takes {taken}")
        for other in _registered:
            for fact in ("kind", "order"):
                if getattr(other.declaration, fact) == getattr(self, fact):
                    raise TypeError(f"policy {self.name} has the {fact} that {other.name} has")
        rule.declaration = self
        for fact in _AT_HAND:
            setattr(rule, fact, getattr(self, fact))
        _registered.append(rule)
        return rule


_registered: list[type[Policy]] = []


class Declared(ABC):
    """Base class of policies: the facts of their declaration, and the values of their parameters."""

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
        """A policy with these sizes. If it has several times, the first gets the whole expiry."""
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

    def __repr__(self) -> str:
        return f"policy({str(self)!r})"

    def _valued(self) -> Iterator[tuple[Parameter, int]]:
        return zip(self.parameters, self.values, strict=True)


_AT_HAND = tuple(fact for fact in Declared.__annotations__ if fact != "declaration")


class Policy(Protocol):
    """A rule on what counts as a duplicate, applied to the receipts of one domain in order.

    A policy is pure: it has no clock and does no I/O. A receipt without id is unchecked and changes nothing. Time never runs
    backwards: a receipt from before the latest one counts as received with it. `str()` gives the policy's canonical text.
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
        """How many ids it keeps, and for how many microseconds; 0 if that isn't bounded."""

    @property
    def policy_state(self) -> int | None:
        """What the row of the receipt just judged new must also keep, for a replay; None for most policies."""

    @property
    def latest_us(self) -> int:
        """The latest receipt's time."""

    @property
    def clock_clamped(self) -> int:
        """The number of receipts with a time before the latest one's."""

    @property
    def serial(self) -> int:
        """The number of the latest receipt with an id, counted from 1; 0 before the first."""

    @property
    def remembered_ids(self) -> int:
        """How many distinct ids it remembers."""

    @property
    def peak_ids(self) -> int:
        """The most ids remembered after any receipt."""

    @property
    def clock_us(self) -> int | None:
        """The time by which it forgets, in microseconds, if its rows don't show that time; None before it moves."""

    def __contains__(self, unique_message_id: str, /) -> bool:
        """Whether a receipt of the id would be a duplicate now, at the latest receipt's time."""

    def receive(
        self, unique_message_id: str | None, message_source_id: str | None = None, *, received_at_us: int
    ) -> Decision:
        """Decide on one receipt and record it.

        A duplicate's `age_us` and `distance` count from the receipt that it repeats. That is the newest receipt of its id if
        duplicates refresh the id, else the one judged new. If `keeps_ids` is false, that receipt may have another id.
        `window_left` and `expiry_left_us` are None if neither a count nor a time bounds what is remembered.

        Raises:
            SettingsError: The receipt is invalid. Nothing has changed.
            IdFormatError: The policy can't judge this id. Nothing has changed.
        """

    def receive_many(self, receipts: Iterable[Receipt | tuple[str | None, str | None, int]]) -> list[Decision]:
        """Decide on receipts in order, as `receive` does one by one."""

    def keep_forgotten(self) -> None:
        """From now on, keep the numbers of entries that can't matter any more, for `take_forgotten`. Drops those kept before."""

    def take_forgotten(self) -> list[int]:
        """The numbers of entries that stopped mattering since the last call."""

    def entries(self) -> list[int]:
        """The numbers of the receipts that determine what is remembered, ascending."""

    def replay(self, entries: Iterable[ReceiptValues], clock_us: int | None, /) -> None:
        """Follow another policy of the same kind and sizes: record its entries from after the latest one here.

        Entries that it has forgotten since may be missing. `clock_us` is the other's. Both give the same verdicts from then on.
        """


def registered_policies() -> tuple[type[Policy], ...]:
    """All policies imported so far, in the order of tables."""
    return tuple(sorted(_registered, key=lambda rule: rule.declaration.order))


def check_size(name: str, value: Any) -> int:
    """Return a parameter's value, a count or microseconds; `SettingsError` if it is invalid."""
    if value.__class__ is not int or value < 0:
        raise SettingsError(f"{name} must be a whole number of at least 0, not {value!r:.80}")
    return int(value)
