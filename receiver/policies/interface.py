"""What every policy can do, whatever its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from receiver.errors import SettingsError
from receiver.message import Decision, Receipt

__all__ = ["Parameter", "Policy", "check_size", "secs_text"]


class Parameter(NamedTuple):
    """One of a policy's parameters, as it is written in `NAME:parameter=value`."""

    name: str
    argument: str
    """The same for Python: a time is written in seconds and passed on as whole microseconds, in `..._us`."""
    default: Callable[[], int] | None = None
    """Asked for the vendor's when it is needed, for it may stand in settings; None: there is none, it must be given."""

    @property
    def is_time(self) -> bool:
        return self.argument.endswith("_us")


class Policy(Protocol):
    """A rule on what counts as a duplicate, applied to the receipts of one domain in order.

    Pure: no clock, no I/O. A receipt without id is unchecked and changes nothing, and time never runs backwards: a
    receipt from before the latest one counts as received with it. `str()` is the policy's canonical text.
    """

    name: ClassVar[str]
    """What `policy(text)` knows it by."""
    kind: ClassVar[str]
    """What a store knows it by: like `name`, but another where a domain can't go on from one to the other."""
    parameters: ClassVar[tuple[Parameter, ...]]
    records_duplicates: ClassVar[bool]
    """Whether a duplicate refreshes what is remembered, as with Apama; else only first receipts matter."""
    keeps_ids: ClassVar[bool]
    """Whether each id is remembered by itself, rather than one that stands for many."""
    goes_by_send_time: ClassVar[bool]
    """Whether it matters when a message was sent, so that `receive` takes `jms_timestamp_ms` too."""

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

    def replay(self, entries: Iterable[tuple[Any, ...]], clock_us: int | None, /) -> None:
        """Follow another of the same kind and sizes: record its entries from after the latest one here.

        An entry is a row of a store's log (`receiver.store.log.Row`). Those that it has forgotten since may be missing
        or not; `clock_us` is its own. What is remembered then is the same, and so are all verdicts to come.
        """


def check_size(name: str, value: Any) -> int:
    """The value of a policy's parameter as Python has it: a count, or microseconds; SettingsError if it can't be."""
    if value.__class__ is not int or value < 0:
        raise SettingsError(f"{name} must be a whole number of at least 0, not {value!r:.80}")
    return int(value)


def secs_text(us: int) -> str:
    """Microseconds as seconds, in decimals without trailing zeros."""
    secs, rest = divmod(us, 1_000_000)
    return f"{secs}.{rest:06d}".rstrip("0").rstrip(".")
