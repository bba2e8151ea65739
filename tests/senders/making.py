"""Short functions for makers, and for senders as processes that can be killed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from sqlalchemy import NullPool, create_engine

from receiver.senders import DedupKeyMaker, SequenceIdMaker
from receiver.settings import StoreSettings
from tests.durable.worker import PATIENCE_SECS, PROCESSES

SENDER = "billing"
SOURCE = "gateway:1"


def billing(url: str, *, sender: str = SENDER, patience_secs: float = 10.0) -> DedupKeyMaker:
    return DedupKeyMaker.open(url, sender=sender, store_settings=StoreSettings(lock_timeout_secs=patience_secs))


def gateway(url: str, *, source: str = SOURCE, patience_secs: float = 10.0) -> SequenceIdMaker:
    return SequenceIdMaker.open(
        url, message_source_id=source, store_settings=StoreSettings(lock_timeout_secs=patience_secs)
    )


def application(url: str):
    """An engine of the application."""
    return create_engine(url, poolclass=NullPool)


def pending_keys(url: str) -> dict[str, str]:
    """Reference and key of each unconfirmed message, as another maker sees them."""
    with billing(url) as keys:
        return {pending.reference: pending.key for pending in keys.pending()}


def numbers(ids: list[str]) -> list[int]:
    """The numbers of these ids, which must be of our source."""
    split = [id_.partition(":") for id_ in ids]
    assert {source for _, _, source in split} <= {SOURCE}
    return [int(number) for number, _, _ in split]


class Sender:
    """A running process, and its reports."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.heard: list[Any] = []
        self._process = process
        self._pipe = pipe

    def listen(self, at_most: int | None = None) -> list[Any]:
        """Read `at_most` reports, or all until the process ends."""
        new: list[Any] = []
        while at_most is None or len(new) < at_most:
            assert self._pipe.poll(PATIENCE_SECS), f"the sender is stuck after {self.heard[-3:]}"
            try:
                new.append(self._pipe.recv())
            except (EOFError, ConnectionError):
                break
        self.heard += new
        return new

    def kill(self) -> None:
        """Kill -9 it, then read its last reports."""
        self._process.kill()
        self._process.join()
        self.listen()


@contextmanager
def sending(work: Callable[..., None], *arguments: object) -> Iterator[Sender]:
    """A process that does `work`, with these arguments and a pipe for reports. It is dead at the end."""
    ours, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=work, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        yield Sender(process, ours)
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()
