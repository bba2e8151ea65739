"""Receipts in, decisions out: the frozen values that every other part passes around."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar

from receiver.errors import SettingsError

T = TypeVar("T")
ASCII = "ASCII"
Ascii = Annotated[str, ASCII]
"""ASCII text, which a store keeps as text. A store keeps other text as bytes, which are exact."""

LATEST_US = 253_402_300_799_999_999
"""The last microsecond of the year 9999. A later time can't be meant: it may be in nanoseconds."""


class Verdict(StrEnum):
    """What a receipt is, judged by the ids that its domain remembers."""

    NEW = "new"
    DUPLICATE = "duplicate"
    UNCHECKED = "unchecked"
    """The receipt has no uniqueMessageId, so nothing could be checked."""


class Tier(StrEnum):
    """Which of the two tiers still held the id of a duplicate."""

    SOURCE = "source"
    """Some source's queue of its newest W ids."""
    TIME = "time"
    """Only the domain's time queue."""


class Receipt(NamedTuple):
    """One arrival of a message. A redelivery is another receipt.

    Ids are exact text. None and the empty text mean the same: no id (`Verdict.UNCHECKED`), or the anonymous source.
    """

    unique_message_id: str | None
    message_source_id: str | None = None
    received_at_us: int | None = None
    redelivered: bool = False
    jms_timestamp_ms: int | None = None
    body_digest: str | None = None


_FEWEST_FIELDS = 3
"""A tuple that stands for a `Receipt` must have an id, a source and a time."""


class ReceiptRow(NamedTuple):
    """A receipt as a domain's log keeps it, whether the policy still remembers it or not.

    `receiver.store.tables` makes the columns and the SQL of these fields, in this order.
    """

    seq: int
    """Counts the recorded receipts of the domain from 1."""
    received_at_us: int
    """Not before the time of any earlier row."""
    first_received_at_us: int | None
    """When the id first came; None if with this receipt."""
    message_source_id: str | None
    """None for the anonymous source, never the empty text."""
    unique_message_id: str
    body_digests: Ascii | None = None
    """A JSON list of the different digests that came with the id; None if none did."""
    policy_state: int | None = None
    """What the policy keeps of the receipt besides: its send time, its slot in a ring, or that its source was retired
    later; None for most receipts."""


ReceiptValues = tuple[int, int, int | None, str | None, str, str | None, int | None]
"""The fields of a `ReceiptRow` in their order. A batch keeps its rows as plain tuples: these are made in a third of the
time, and the garbage collector stops tracking them. `ReceiptRow._make` makes a `ReceiptRow` of one.
"""

ReceiptColumns = tuple[
    Sequence[int],
    Sequence[int],
    Sequence[int | None],
    Sequence[str | None],
    Sequence[str],
    Sequence[str | None],
    Sequence[int | None],
]
"""One or more rows, as a column for each field of `ReceiptRow`. A log is read in this form, because making a million rows
one by one is slow. `zip(*columns)` gives the rows.
"""


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on one receipt. For a duplicate it also says what caught it, and how nearly it was missed.

    `window_left` and `expiry_left_us` are the headroom. The duplicate would still have been caught after that many more
    distinct ids of the source, or if the time queue's newest entry had been that much younger. Raise an alarm when both
    come near 0.
    """

    verdict: Verdict
    """New, duplicate, or, without an id, unchecked."""
    tier: Tier | None = None
    """Which tier still held the id of a duplicate; None for a policy without tiers."""
    age_us: int | None = None
    """Time since the newest earlier receipt of the id, on the domain's clock."""
    window_left: int | None = None
    """W - 1 - (newer distinct ids of the source that holds the id); 0 in the time tier."""
    expiry_left_us: int | None = None
    """E - (age of the id against the time queue's newest entry), not below 0; 0 when E is 0."""
    distance: int | None = None
    """Receipts that the domain recorded since the id's newest earlier one, including this one: 1 if it came right after."""
    body_differs: bool | None = None
    """Whether the body's digest differs from all digests that came with the id before; None if that isn't known."""
    delivered_anyway: bool = False
    """Whether a durable receiver delivers this duplicate: it only observes, or the id came with another body."""

    @property
    def deliver(self) -> bool:
        """Whether to hand the message on: it is no duplicate, or is delivered anyway."""
        return self.verdict is not Verdict.DUPLICATE or self.delivered_anyway

    def __bool__(self) -> NoReturn:
        # Otherwise `if decision:` would be true for a duplicate too, and the message would be handled again.
        raise TypeError("a decision is neither true nor false; ask for decision.deliver")


NEW = Decision(Verdict.NEW)
UNCHECKED = Decision(Verdict.UNCHECKED)


def check_receipt(unique_message_id: object, message_source_id: object, received_at_us: Any, *, first: bool) -> str:
    """Return the id; `SettingsError` for a receipt that no policy can judge. `first`: it is the domain's first receipt."""
    if not isinstance(unique_message_id, str):
        raise not_text_error("unique_message_id", unique_message_id)
    if not isinstance(message_source_id, str | None):
        raise not_text_error("message_source_id", message_source_id)
    if received_at_us.__class__ is not int:  # True is an int, but no time
        raise SettingsError(
            f"received_at_us must be whole microseconds, not {received_at_us!r:.80}", hint=time_hint(received_at_us)
        )
    if first and received_at_us < 0:
        raise SettingsError(f"received_at_us must not be negative, not {received_at_us}")
    return unique_message_id


def not_text_error(name: str, value: object) -> SettingsError:
    """The error for an argument that must be text."""
    return SettingsError(
        f"{name} must be text, not {value!r:.80}", hint="str(...) makes text of a number, .decode() of bytes"
    )


def time_hint(value: object, *, in_ms: bool = False) -> str:
    """The hint for an argument that should be a time, but is none or has another unit."""
    if hasattr(value, "timestamp"):
        return f"of a datetime: round(TIME.timestamp() * {'1_000' if in_ms else '1_000_000'})"
    return f"is it of another unit? Now is time.time_ns() // {'1_000_000' if in_ms else '1_000'}"


def for_each(receipts: object, do: Callable[[Any], T]) -> list[T]:
    """The results of `do` for each receipt given to `receive_many`; `SettingsError` if one is no receipt."""
    done = []
    for receipt in receipts_in(receipts):
        try:
            done.append(do(receipt))
        except (TypeError, LookupError, ValueError):
            check_shape(receipt)
            raise
    return done


def receipts_in(given: object) -> Iterator[Any]:
    """An iterator over the argument of `receive_many`; `SettingsError` if it isn't iterable."""
    try:
        return iter(given)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        raise _not_a_receipt(given) from None


def check_shape(given: object) -> None:
    """`SettingsError` unless this has as many values as a receipt may have. Text is refused, though it can be unpacked."""
    is_row = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    if not (is_row and _FEWEST_FIELDS <= len(given) <= len(Receipt._fields)):  # type: ignore[arg-type]
        raise _not_a_receipt(given)


def _not_a_receipt(given: object) -> SettingsError:
    return SettingsError(
        f"receive_many takes a list of receipts, and {given!r:.80} is none",
        hint="make each a Receipt or a tuple (unique_message_id, message_source_id, received_at_us); for one alone call receive",
    )
