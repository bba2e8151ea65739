"""The results of a probe of a broker, for people and as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from receiver.bridge.probing import Ending, Probe, Selectors
from receiver.quantities import count, duration
from receiver.report.document import Cells, Column, Items, Lead, Table, Text
from receiver.report.json_object import record
from receiver.report.terminal import print_contents
from receiver.report.words import or_dash
from receiver.settings import BridgeSettings

_ENDINGS = {
    Ending.CLOSED: ("closed", "closed its connection"),
    Ending.KILLED: ("killed", "was killed"),
    Ending.ACKNOWLEDGING: ("killed as it acknowledged", "was killed as it acknowledged"),
    Ending.FROZEN: ("silent", "fell silent, as without network"),
}
"""How a consumer ended, in the table and in a sentence."""


def probe_object(probe: Probe) -> dict[str, Any]:
    """The probe as JSON; times are in seconds."""
    return {
        "address": probe.address,
        "messages": probe.messages,
        "redeliveries": [record(each) for each in probe.redeliveries],
        "selectors": probe.selectors,
        "selectors_why": probe.selectors_why or None,
        "drops_known_ids": probe.drops_known_ids,
        "answers_acknowledgements": probe.answers_acknowledgements,
        "asks_for": {"window": probe.window, "expiry_secs": probe.expiry_secs},
    }


def print_probe(probe: Probe, console: Console) -> None:
    """Print the settings that the probe asks for, then its results."""
    table = Table.of(
        f"What came again when a consumer ended ({count(probe.messages, 'message')} sent)",
        probe.redeliveries,
        [
            (Column("it was", Cells.WORD), lambda each: _ENDINGS[each.ending][0]),
            (Column("held"), lambda each: count(each.held)),
            (Column("again"), lambda each: count(each.again)),
            (Column("from"), lambda each: or_dash(each.first_us, duration)),
            (Column("to"), lambda each: or_dash(each.last_us, duration)),
            (Column("flagged"), lambda each: count(each.flagged)),
            (Column("unordered"), lambda each: count(each.out_of_order)),
        ],
    )
    print_contents(
        [
            Lead(f"Set W = {probe.window:,} and E = {probe.expiry_secs:,} s, or more."),
            *map(Text, _reasons(probe)),
            table,
            Items("What to know of this broker", list(_remarks(probe))),
        ],
        console,
    )


def _reasons(probe: Probe) -> Iterator[str]:
    longest = max(probe.redeliveries, key=lambda each: each.expiry_need_us)
    if longest.expiry_need_us:
        _, how = _ENDINGS[longest.ending]
        yield (
            f"A message came again {duration(longest.expiry_need_us)} after it was first taken, when a consumer {how}. "
            "E is twice that."
        )
    widest = max(probe.redeliveries, key=lambda each: each.window_need)
    if widest.window_need:
        yield (
            f"{count(widest.window_need, 'id')} of its source had come since, because the consumer held so many. W is twice "
            f"that. If your batches are larger ({BridgeSettings().max_batch_size:,} messages with receiver bridge), set twice "
            "a batch. While other consumers go on, more ids come between; then E catches the repeat."
        )
    if any(each.patience_ran_out for each in probe.redeliveries):
        yield (
            "The messages of a silent consumer didn't come again while it lived. E must be longer than the broker waits, "
            "which this probe couldn't measure. Probe again with more --patience."
        )


def _remarks(probe: Probe) -> Iterator[str]:
    again = sum(each.again for each in probe.redeliveries)
    flagged = sum(each.flagged for each in probe.redeliveries)
    flagged_new = sum(each.flagged_new for each in probe.redeliveries)
    yield f"JMSRedelivered was set on {flagged:,} of {count(again, 'message')} that came again."
    if flagged_new:
        yield f"It was also set on {count(flagged_new, 'message')} that no consumer had taken before: don't rely on it."
    if any(each.out_of_order for each in probe.redeliveries):
        yield "Messages changed their order: a later one came first."
    else:
        yield "Messages kept their order."
    if missing := sum(each.missing for each in probe.redeliveries):
        yield f"{count(missing, 'message')} never came. Check whether this queue limits deliveries or lets messages expire."
    if twice := sum(each.acknowledged_again for each in probe.redeliveries):
        said = (
            "the broker had answered the acknowledgement" if probe.answers_acknowledgements else "it was acknowledged"
        )
        yield f"{count(twice, 'message')} came again though {said}."
    if not probe.answers_acknowledgements:
        yield "It confirms no acknowledgement by this protocol. One may be lost with its connection: its messages come again."
    yield {
        Selectors.WORK: "Selectors work.",
        Selectors.IGNORED: "It silently ignores selectors: don't use any.",
        Selectors.REFUSED: f"A selector is refused: {probe.selectors_why}.",
    }[probe.selectors]
    if probe.drops_known_ids:
        yield "It drops a message whose _AMQ_DUPL_ID it knows: as a target, it gets each message once."
    else:
        yield "It drops no repeated message: as a target, it may get a message twice."
