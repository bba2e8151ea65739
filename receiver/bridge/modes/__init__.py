"""The flows of the modes: what a bridge does with a batch before it is acknowledged, and after.

This module has `Flow`, the base class, and the figures that flows share.

| file | what is in it |
|---|---|
| `inbox_flow.py` | AT_LEAST_ONCE and EXACTLY_ONCE: messages wait in the inbox, and duplicates too if they are kept |
| `controlled_flow.py` | APP_CONTROLLED: the target is served in the transaction that detects duplicates, also by several consumers at once |
| `direct_flow.py` | BEST_EFFORT: messages wait in memory |
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from receiver.bridge.connectors import Source
from receiver.bridge.connectors.nodes import Nodes
from receiver.bridge.received import Received, Taken
from receiver.bridge.targets import Target
from receiver.durable.receiver import Receiver
from receiver.durable.status import Rate, Status, counter

_LOGGER = logging.getLogger("receiver.bridge")


@dataclass(slots=True)
class Figures:
    """The figures of a bridge besides those of its receiver. Only the bridge's thread writes them; any thread reads them."""

    delivered: int = counter("Messages handed on to the target.")
    failed: int = counter("Tries of single messages that failed.")
    parked: int = counter("Messages given up and parked; in BEST_EFFORT, dropped.")
    waiting: int = 0
    """Messages in the inbox, as last counted; in BEST_EFFORT, in memory."""
    connection_errors: int = counter("Connections to brokers or the store that broke or could not be made.")
    output_errors: int = counter(
        "Times a file or a function as target took nothing more: a full disk, a failing message."
    )
    has_ended: bool = False
    """Whether the bridge is closed."""
    of_duplicates: Figures | None = None
    """The figures of the target for duplicates; None without one."""
    nodes: Mapping[str, Nodes] = field(default_factory=dict)
    """The brokers to which it connects, by role: `source`, `target` or `duplicates`."""
    _rate: Rate = field(default_factory=Rate)

    @property
    def any_waits(self) -> bool:
        return bool(self.waiting or (self.of_duplicates is not None and self.of_duplicates.waiting))

    def line(self, status: Status) -> str:
        """Apama's status line for sender and receiver: `s=1` is the target."""
        delivered = self.delivered
        rate = self._rate.of(delivered)
        head, _, rest = status.line().partition(": ")
        return (
            f"{head}: s=1 tx={delivered:,} sRate={rate:,.0f} sOutst={self.waiting:,} {rest}"
            f" connErr={self.connection_errors:,} parked={self.parked:,}"
        )


class Flow(ABC):
    """One way to handle batches. A method that has raised `BrokerError`, `StoreError` or `OutputError` may be called again."""

    def __init__(self, receiver: Receiver, target: Target, figures: Figures) -> None:
        self.receiver = receiver
        self.target = target
        self.figures = figures

    @property
    def handed_on(self) -> int:
        """A number that grows whenever a target takes messages."""
        duplicates = self.figures.of_duplicates
        return self.figures.delivered + (duplicates.delivered if duplicates else 0)

    def prepare(self) -> None:
        """Called before the first batch, so that problems show at the start."""

    def attach(self, source: Source) -> None:
        """Called with each new source, before its first message is taken."""

    @abstractmethod
    def before_acknowledging(self, taken: Taken) -> None:
        """Do all that must be done before the broker may forget the batch."""

    @abstractmethod
    def deliver_waiting(self) -> bool:
        """Hand on some waiting messages that are due. Returns whether there may be more. Called while `figures.any_waits`."""

    def tend(self) -> None:
        """Count waiting messages, and tidy up. Called now and then."""

    @abstractmethod
    def close(self) -> None:
        """Close all resources but the receiver and the target."""


def log_failure(
    target: str, message: Received, max_tries: int, why: str, *, is_final: bool, then: str = "parked"
) -> bool:
    """Log a failed try, already counted in `message.tries`. Returns whether to give the message up; `then` says what happens to
    it in that case. `is_final`: no further try would succeed."""
    is_last = is_final or message.tries >= max_tries
    how = "can't go there" if is_final else f"failed {message.tries} of {max_tries} times"
    what = then if is_last else "tried again"
    level = logging.ERROR if is_last else logging.WARNING
    _LOGGER.log(level, "%s: %r %s, and is %s: %s", target, message.unique_message_id, how, what, why)
    return is_last
