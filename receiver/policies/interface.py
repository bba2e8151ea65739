"""What every policy can do, whatever its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any, ClassVar, Protocol, Self, TypeVar

from receiver.errors import SettingsError
from receiver.message import Decision, Receipt, ReceiptRow
from receiver.policies.declaration import Declaration, Parameter

__all__ = ["Declared", "Policy", "check_size", "registered", "registered_policies", "secs_text"]


_registered: list[type[Policy]] = []


class Declared:
    """Has what `registered` gives a class: its declaration, and of that what is asked of it at every turn."""

    __slots__ = ()

    declaration: ClassVar[Declaration]
    name: ClassVar[str]
    kind: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]]
    records_duplicates: ClassVar[bool]
    keeps_ids: ClassVar[bool]
    goes_by_send_time: ClassVar[bool]


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

    latest_us: int
    """The latest receipt's time."""
    clock_clamped: int
    """Receipts that came with a time before the latest one's."""

    @classmethod
    def of_sizes(cls, window: int, expiry_us: int) -> Self:
        """One with these sizes."""

    @property
    def sizes(self) -> tuple[int, int]:
        """How many ids it keeps, and for how many microseconds; 0 for what doesn't bound it."""

    @property
    def mark(self) -> int | None:
        """What a row of the log must keep of the receipt just judged new, for a replay; None for most policies."""

    @property
    def serial(self) -> int:
        """The number of the latest receipt with an id, which count from 1; 0 before there was any."""

    @property
    def remembered_ids(self) -> int: ...

    @property
    def peak_ids(self) -> int:
        """The most ids remembered after any receipt."""

    @property
    def clock_us(self) -> int | None:
        """By what it forgets, where that is neither its receipts nor their times; None before it moved."""

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

        A duplicate's `age_us` and `distance` count from the receipt that makes it one: the newest of its id where
        duplicates refresh, else the one judged new, which with `keeps_ids` false may be another id's. `window_left` and
        `expiry_left_us` are None where neither a count nor a time bounds what is remembered.

        A receipt that can't be meant is a `SettingsError`, an id that the policy can't judge an `IdFormatError`; then
        nothing has changed.
        """

    def receive_many(self, receipts: Iterable[Receipt | tuple[str | None, str | None, int]]) -> list[Decision]:
        """Decide on receipts in order, as `receive` does one by one."""

    def keep_forgotten(self) -> None:
        """From now on, keep the number of each entry that can't matter any more, for `take_forgotten`."""

    def take_forgotten(self) -> list[int]:
        """The numbers kept since this was last asked for."""

    def entries(self) -> list[int]:
        """The numbers of the receipts that make up what is remembered, ascending."""

    def replay(self, entries: Iterable[ReceiptRow], clock_us: int | None, /) -> None:
        """Follow another of the same kind and sizes: record its entries from after the latest one here.

        Entries that it has forgotten since may be missing or not; `clock_us` is its own. What is remembered then is the same, and so are all verdicts to come.
        """


_Kind = TypeVar("_Kind", bound=Policy)


def registered(declaration: Declaration) -> Callable[[type[_Kind]], type[_Kind]]:
    """Make a class one of the policies, of which this is known; TypeError where it could be taken for another one, or can't be made."""

    def register(kind: type[_Kind]) -> type[_Kind]:
        declared = ", ".join(parameter.argument for parameter in declaration.parameters)
        taken = ", ".join(signature(kind).parameters)
        if declared != taken:
            raise TypeError(f"policy {declaration.name} has the parameters {declared}, but its class takes {taken}")
        for other in _registered:
            for fact in ("kind", "order"):
                if getattr(other.declaration, fact) == getattr(declaration, fact):
                    raise TypeError(f"policy {declaration.name} has the {fact} that {other.name} has")
        kind.declaration = declaration
        for fact in _AT_HAND:
            setattr(kind, fact, getattr(declaration, fact))
        _registered.append(kind)
        return kind

    return register


def registered_policies() -> tuple[type[Policy], ...]:
    """All that were imported so far, in their order."""
    return tuple(sorted(_registered, key=lambda kind: kind.declaration.order))


def check_size(name: str, value: Any) -> int:
    """The value of a policy's parameter as Python has it: a count, or microseconds; SettingsError if it can't be."""
    if value.__class__ is not int or value < 0:
        raise SettingsError(f"{name} must be a whole number of at least 0, not {value!r:.80}")
    return int(value)


def secs_text(us: int) -> str:
    """Microseconds as seconds, in decimals without trailing zeros."""
    secs, rest = divmod(us, 1_000_000)
    return f"{secs}.{rest:06d}".rstrip("0").rstrip(".")
