"""Figures, times and hostile text, written for people: shared by the terminal and the HTML report.

Counts and times, which other modules also write, are in `receiver.quantities`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from receiver.quantities import SECOND_US, count, duration, moment, percent, three_digits
from receiver.simulate.figures import LogFigures

LONGEST_WORD, LONGEST_NAME, LONGEST_PARAGRAPH = 60, 120, 2_000
"""The most characters that a report shows of a text inside a sentence, of a name in a table, and of a paragraph."""
MOST_DOMAINS = 50
"""The most rows of a table of domains."""


def sanitised(text: str, most: int = LONGEST_WORD) -> str:
    """Text from a log, harmless and on one line. Unprintable characters become escapes, the middle of a long text becomes …

    Control characters, ANSI escapes, line breaks and characters that reverse the direction of writing are all escaped.
    """
    shown = [char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text]
    if sum(map(len, shown)) <= most:
        return "".join(shown)
    head = _beginning(shown, most // 2)
    tail = _beginning(reversed(shown), most - 1 - most // 2)
    return "".join([*head, "…", *reversed(tail)])


def named_source(source: str, most: int = LONGEST_NAME) -> str:
    """A source's name, sanitised; `(anonymous)` if it is empty."""
    return sanitised(source, most) or "(anonymous)"


def named_domain(domain: str, most: int = LONGEST_NAME) -> str:
    """A domain's name, sanitised; `(no name)` if it is empty."""
    return sanitised(domain, most) or "(no name)"


def _beginning(pieces: Iterable[str], room: int) -> list[str]:
    taken: list[str] = []
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            break
        taken.append(piece)
    return taken


def or_dash(value: int | None, word: Callable[[int], str] = count) -> str:
    """The figure as `word` writes it; `-` for None."""
    return "-" if value is None else word(value)


def compact(number: int) -> str:
    """A count in at most five characters: `9,999`, `104k`, `1.2M`. For narrow cells; the exact figure is shown elsewhere."""
    if number < 10_000:  # noqa: PLR2004
        return f"{number:,}"
    return _scaled(number, ("k", "M", "G", "T", "P"))


def size(bytes_: int) -> str:
    """Bytes in decimal units: `925 kB`, `1.48 MB`."""
    if bytes_ < 1_000:  # noqa: PLR2004
        return f"{bytes_} B"
    return _scaled(bytes_, (" kB", " MB", " GB", " TB", " PB"))


def _scaled(number: int, units: tuple[str, ...]) -> str:
    value = float(number)
    for unit in units:
        value /= 1_000
        if value < 999.5 or unit == units[-1]:  # noqa: PLR2004 - a value that would round to 1000 takes the next unit
            return three_digits(value) + unit
    raise AssertionError("units must not be empty")


def moment_or_none(us: int | None) -> str | None:
    """The time as `moment` writes it; None for None, and for a time out of range, which a damaged store may have."""
    try:
        return None if us is None else moment(us)
    except OverflowError:
        return None


def second(us: int) -> str:
    """A time to the second, UTC: `2026-05-01 10:00:00`; `-` for a time out of range."""
    return (moment_or_none(us) or "-")[:19].replace("T", " ")


def listed(names: Iterable[str]) -> str:
    """The names as `one, two and three`. There must be at least one."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def of_duplicates(missed: int, duplicates: int) -> str:
    """`none of 941 duplicates`, `3 of 941 duplicates (0.3 %)`; with fewer than two duplicates `nothing` or `the one duplicate`."""
    if duplicates < 2:  # noqa: PLR2004 - one or none
        return "the one duplicate" if missed else "nothing"
    if not missed:
        return f"none of {count(duplicates, 'duplicate')}"
    return f"{count(missed)} of {count(duplicates, 'duplicate')} ({percent(missed, duplicates)})"


def reading(log: LogFigures) -> str:
    """The size and the times of the log, in one sentence."""
    share = f" ({percent(log.duplicates, log.receipts)} of all)" if log.duplicates else ""
    span, first, last = "", log.first_received_at_us, log.last_received_at_us
    if first is not None and last is not None:
        span = f", received within {duration(last - first)}: {second(first)} to {second(last)} UTC"
    return (
        f"{count(log.receipts, 'receipt')}, {count(log.duplicates, 'duplicate')}{share}, "
        f"from {count(log.sources, 'source')} in {count(log.domains, 'domain')}{span}."
    )


def remarks(log: LogFigures, key: str) -> list[str]:
    """How the log was read: the domain key, and the receipts that are unchecked, unreadable, out of order or redelivered."""
    said = [f"Ids are compared within domains named by the key '{sanitised(key)}'."]
    if log.unchecked:
        said.append(f"{count(log.unchecked, 'receipt')} without uniqueMessageId: delivered unchecked.")
    if log.skipped:
        said.append(f"{count(log.skipped, 'unreadable row')} skipped.")
    if log.clock_clamped:
        said.append(f"Time ran backwards {count(log.clock_clamped, 'time')}: the latest time of the domain was used.")
    if log.redelivered:
        longest = "unknown, for the log has no jms_timestamp"
        if log.max_delivery_secs:
            longest = duration(round(log.max_delivery_secs * SECOND_US))
        said.append(f"{count(log.redelivered, 'receipt')} flagged JMSRedelivered, the longest delivery {longest}.")
    return said
