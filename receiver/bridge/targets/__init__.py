"""What a bridge asks of whatever it hands messages to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, runtime_checkable

from receiver.bridge.received import Received
from receiver.store.inbox import Lease

__all__ = ["Outcome", "Target", "one_by_one"]


@dataclass(slots=True)
class Outcome:
    """What became of messages, by their index among those that were to be delivered.

    A message in neither field wasn't tried: an earlier one of its source failed, or those before took too long.
    """

    delivered: list[int] = field(default_factory=list)
    """Those that the target has."""
    failed: dict[int, str] = field(default_factory=dict)
    """Those that failed by themselves, each with the reason."""

    @classmethod
    def all_of(cls, messages: Sequence[Received]) -> Self:
        return cls(delivered=list(range(len(messages))))


def one_by_one(
    messages: Sequence[Received], failure: Callable[[Received], str | None], *, long_secs: float = math.inf
) -> Outcome:
    """Deliver each message by itself. `failure` delivers one, and returns why it failed, or None. After `long_secs` no more
    are tried."""
    outcome, failing = Outcome(), set()
    until = time.monotonic() + long_secs
    for index, message in enumerate(messages):
        if index and time.monotonic() > until:
            break
        if message.message_source_id in failing:
            continue
        why = failure(message)
        if why is None:
            outcome.delivered.append(index)
        else:
            outcome.failed[index] = why
            failing.add(message.message_source_id)
    return outcome


@runtime_checkable
class Target(Protocol):
    """Takes messages in order. Order is kept per source: where a message fails, later ones of its source wait.

    `lease` has the target to itself, in the transaction that makes an inbox forget what was delivered, or in that of the
    receipts themselves; it is None where nothing is kept.

    Whoever inherits it has nothing to connect, to lock or to close, unless its own methods say otherwise.
    """

    name: str
    """What a store knows it by; always the same for the same target."""

    def connect(self) -> object:
        """Called at the start, so that what can't be reached or isn't allowed fails then."""
        return None

    def ready(self, lease: Lease) -> bool:
        """Lock the target against other processes, and bring it to the state that the store has of it. False: what has
        changed in the store must be committed first.

        `OutputError` where it isn't in that state and can't be brought to it, or where another process has it.
        """
        del lease
        return True

    def release(self) -> None:
        """Called when the lease has ended, whatever became of it. Never raises."""
        return

    def deliver(self, messages: Sequence[Received], lease: Lease | None) -> Outcome:
        """Deliver these. After a `BrokerError` or `OutputError` none of them counts as delivered."""

    def close(self) -> None:
        """Release what it holds. Never raises."""
        return
