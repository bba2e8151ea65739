"""`Target`, the interface of everything to which a bridge hands messages, and the targets.

| file | what is in it |
|---|---|
| `file_target.py` | lines of JSON in a file or on standard output |
| `broker_target.py` | another broker, message by message or in turns |
| `python_target.py` | a function of the application |
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, runtime_checkable

from receiver.bridge.received import Received
from receiver.errors import MessageRefusedError, MessageUnfitError, ReceiverError, StoreBusyError
from receiver.store.inbox import Lease


@dataclass(slots=True)
class Outcome:
    """The outcome of a delivery, by the messages' indexes among those to be delivered.

    A message neither delivered, failed nor held wasn't tried, or it isn't known whether it arrived: an earlier one of its source
    failed, earlier ones took too long, or there is an `error`.
    """

    delivered: list[int] = field(default_factory=list)
    """Messages that the target has."""
    failed: dict[int, str] = field(default_factory=dict)
    """Messages that failed by themselves, with the reasons."""
    final: set[int] = field(default_factory=set)
    """Failed messages that would fail however often they were tried."""
    held: dict[int, StoreBusyError] = field(default_factory=dict)
    """Messages for which others hold what they need, with the errors. This is no failed try."""
    error: ReceiverError | None = None
    """Why the target took no more than the delivered messages; raised once they are confirmed."""
    is_lasting: bool = False
    """Whether delivered messages stay delivered if the lease is rolled back."""

    @classmethod
    def all_of(cls, messages: Sequence[Received]) -> Self:
        """The outcome if all of these are delivered."""
        return cls(delivered=list(range(len(messages))))

    def fail(self, index: int, why: str | MessageRefusedError | StoreBusyError) -> None:
        """Note that a message failed by itself, or that others hold what it needs."""
        if isinstance(why, StoreBusyError):
            self.held[index] = why
            return
        self.failed[index] = str(why)
        if isinstance(why, MessageUnfitError):
            self.final.add(index)

    def raise_held(self) -> None:
        """Raise the error of the first message for which others hold what it needs, if there is one."""
        for error in self.held.values():
            raise error


def delivered_to(target: Target, messages: Mapping[int, Received], lease: Lease) -> Outcome:
    """Deliver these messages. Their keys stand for them in the outcome, instead of their indexes."""
    outcome, keys = target.deliver(list(messages.values()), lease), list(messages)
    return replace(
        outcome,
        delivered=[keys[index] for index in outcome.delivered],
        failed={keys[index]: why for index, why in outcome.failed.items()},
        final={keys[index] for index in outcome.final},
        held={keys[index]: error for index, error in outcome.held.items()},
    )


def one_by_one(
    messages: Sequence[Received],
    failure: Callable[[Received], str | MessageRefusedError | StoreBusyError | None],
    *,
    outcome: Outcome | None = None,
    ends_by: type[ReceiverError] | tuple[type[ReceiverError], ...] = (),
    long_secs: float = math.inf,
) -> Outcome:
    """Deliver messages one by one, and add the results to `outcome`. The first messages are left out if it has them as delivered.

    `failure` delivers a message. It returns why the message failed, or None. An error of `ends_by` ends this early, and so does
    the end of `long_secs`.
    """
    outcome = Outcome() if outcome is None else outcome
    delivered = outcome.delivered
    first = len(delivered)
    failing: set[str | None] = set()
    until = time.monotonic() + long_secs
    for index, message in enumerate(messages[first:], first):
        if index and time.monotonic() > until:
            break
        if failing and message.message_source_id in failing:
            continue
        try:
            why = failure(message)
        except ends_by as error:
            outcome.error = error
            break
        if why is None:
            delivered.append(index)
        else:
            outcome.fail(index, why)
            failing.add(message.message_source_id)
    return outcome


@runtime_checkable
class Target(Protocol):
    """Takes messages in order. The order is kept per source: if a message fails, later ones of its source wait.

    A `lease` is a transaction that locks the target against other processes. It deletes delivered messages from the inbox, or
    records the receipts. It is None in BEST_EFFORT, where nothing is kept.

    It may have a method `check`, called every second or so, which raises a `BrokerError` while the target can't be reached.

    A class that inherits this needs only `name` and `deliver`. The other methods do nothing here.
    """

    name: str
    """The target's name in stores: always the same for the same target."""

    def connect(self) -> object:
        """Called once, at the start. Raises if the target can't be reached or isn't allowed."""
        return None

    def ready(self, lease: Lease) -> bool:
        """Lock the target against other processes, and bring it to the state that the store has noted of it.

        Returns:
            False if changes in the store must be committed first.

        Raises:
            OutputError: Another process has locked the target, or it can't be brought to that state.
        """
        del lease
        return True

    def release(self) -> None:
        """Called once the lease has ended, however it ended. Never raises."""
        return

    def deliver(self, messages: Sequence[Received], lease: Lease | None) -> Outcome:
        """Deliver these messages.

        Raises:
            BrokerError, OutputError: None of them counts as delivered.
        """

    def close(self) -> None:
        """Close connections and files. Never raises."""
        return
