"""Programs whose power is cut, and checks of what is left of them: `python -m tests.power.cut_programs NAME FOLDER
SEED`.

The seed draws a program's steps. The program says on standard output which steps are done. A check knows the seed, and
so the steps.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Column, MetaData, NullPool, Table, Text, create_engine, insert, select

from receiver import Recording
from receiver.detector import ForgottenId
from receiver.durable.audit import audit
from receiver.durable.forgetting import forget, retire_sources
from receiver.logs import ReadOptions, read_logs
from receiver.logs.compacted import manifest_of
from receiver.senders import DedupKeyMaker, SequenceIdMaker
from receiver.settings import BridgeSettings
from receiver.store.databases import store_url as url_object
from receiver.store.schema import migrate
from tests.bridge.bridged import Route, message, open_from
from tests.brokers.memory import MemorySource
from tests.durable.opened import opened, sizes
from tests.logs.reading import Row, compacted_log, read
from tests.model import Model

SIZES = 5, 4_000_000
"""W, and E in microseconds."""
SOURCES = (None, "web", "phone")
EFFECTS = Table("effects", MetaData(), Column("unique_message_id", Text, nullable=False))
Step = tuple[str, object]


def say(what: object) -> None:
    os.write(1, f"{what}\n".encode())


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"


def steps_of(seed: str, count: int = 14) -> list[Step]:
    """The steps that are done to a domain: mostly batches, in which ids repeat; also sizes changed, sources retired,
    ids forgotten."""
    draw, now_us, steps = random.Random(seed), 1_000_000, []
    for number in range(count):
        what = draw.choice(["resize", "retire", "forget"]) if draw.random() < 1 / 6 else "batch"
        if what == "batch":
            receipts = []
            for index in range(draw.randint(1, 6)):
                now_us += draw.choice([0, 1, 400_000, 3_000_000])
                id_ = draw.choice([f"{number}:{index}", f"again {draw.randrange(8)}", None])
                receipts.append((id_, draw.choice(SOURCES), now_us))
            steps.append((what, receipts))
        elif what == "resize":
            steps.append((what, (draw.randint(0, 9), draw.randint(1, 9) * 1_000_000)))
        elif what == "retire":
            steps.append((what, draw.choice(SOURCES) or ""))
        else:
            steps.append((what, f"again {draw.randrange(8)}"))
    return steps


def models_of(steps: list[Step]) -> Iterator[tuple[set[str], list[str]]]:
    """Which ids are remembered, and which have taken effect: before the first step, and after each."""
    model, effects = Model(*SIZES), []
    yield model.remembered(), []
    for what, argument in steps:
        if what == "batch":
            effects += [id_ for id_, source, at_us in argument if id_ and model.receive(id_, source, at_us) == "new"]
        elif what == "resize":
            model = model.resized(*argument)
        elif what == "retire":
            model.retire(argument)
        else:
            model.forget(argument)
        yield {id_ for id_ in model.remembered() if not id_.startswith("\0")}, list(effects)


def remembered_in(url: str) -> set[str]:
    with opened(url) as orders, orders.batch() as batch:
        return {id_ for id_ in batch.transaction.cache.policy.remembered() if not isinstance(id_, ForgottenId)}


def made(folder: Path, _seed: str = "") -> None:
    """Make a store that has its domain already."""
    opened(url_of(folder), settings=sizes(*SIZES)).close()
    with create_engine(url_of(folder), poolclass=NullPool).begin() as connection:
        EFFECTS.create(connection)
    (folder / "receipts").mkdir()


def nothing(_folder: Path, _seed: str = "") -> None:
    """Prepare nothing, since the program makes everything itself."""


def batches(folder: Path, seed: str, *, joins: bool = False, record: Recording | None = None) -> None:
    url = url_of(folder)
    engine = create_engine(url, poolclass=NullPool)
    orders = opened(url, record=record)
    for number, (what, argument) in enumerate(steps_of(seed), start=1):
        if what == "batch" and joins:
            with engine.begin() as connection, orders.batch(connection) as batch:
                take(batch, argument)
        elif what == "batch":
            with orders.batch() as batch:
                take(batch, argument)
        elif what == "resize":
            orders.close()
            orders = opened(url, settings=sizes(*argument), record=record)
        elif what == "retire":
            retire_sources(url, sources=[argument])
        else:
            forget(url, argument)
        say(number)
    orders.close()


def take(batch, receipts) -> None:
    for id_, source, at_us in receipts:
        if batch.receive(id_, source, received_at_us=at_us).deliver and id_:
            batch.connection.execute(insert(EFFECTS).values(unique_message_id=id_))


def joined(folder: Path, seed: str) -> None:
    batches(folder, seed, joins=True)


def recorded(folder: Path, seed: str) -> None:
    batches(folder, seed, record=recording_in(folder))


def recording_in(folder: Path) -> Recording:
    return Recording(folder / "receipts", rotate_bytes=250, keep_files=None)


def check_batches(folder: Path, seed: str, said: list[str]) -> None:
    """Check that all steps that were said are there, and that the next step is there as a whole or not at all. Ids
    and effects agree."""
    with create_engine(url_of(folder), poolclass=NullPool).connect() as connection:
        effects = list(connection.scalars(select(EFFECTS.c.unique_message_id)))
    possible = list(models_of(steps_of(seed)))[len(said) : len(said) + 2]
    left = (remembered_in(url_of(folder)), effects)
    assert left in possible, f"{left} is none of {possible}"
    assert not audit(url_of(folder)).findings


def check_recorded(folder: Path, seed: str, said: list[str]) -> None:
    """Check that the recording has each receipt of each committed batch once, and no other."""
    check_batches(folder, seed, said)
    opened(url_of(folder), record=recording_in(folder)).close()
    steps = [receipts if what == "batch" else [] for what, receipts in steps_of(seed)]
    committed = [list(chain.from_iterable(steps[:end])) for end in (len(said), len(said) + 1)]
    assert receipts_in(folder / "receipts") in committed


def receipts_in(folder: Path) -> list[tuple[str | None, str | None, int]]:
    if not any(path.name[0] != "." for path in folder.iterdir()):  # a log without receipts would be an error
        return []
    return [
        (id_ or None, source or None, at_us)
        for part in read_logs([str(folder)], ReadOptions())
        for id_, source, at_us in zip(
            part.unique_message_id.tolist(), part.message_source_id.tolist(), part.received_at_us.tolist(), strict=True
        )
    ]


def sender(folder: Path, seed: str) -> None:
    draw = random.Random(seed)
    with (
        closing(DedupKeyMaker.open(url_of(folder), sender="billing")) as keys,
        closing(SequenceIdMaker.open(url_of(folder), message_source_id="gateway")) as ids,
    ):
        for number in range(12):
            say(f"key {number} {keys.key_for(f'{number}')}")
            say(f"id {ids.next().partition(':')[0]}")
            if draw.random() < 1 / 2:
                say(f"confirming {number}")
                keys.confirm(f"{number}")
                say(f"confirmed {number}")


def check_sender(folder: Path, _seed: str, said: list[str]) -> None:
    """Check that no number is given twice, and that a message keeps its key until it is confirmed."""
    given = {number: key for what, number, *key in map(str.split, said) if what == "key"}
    about = {number for what, number, *_ in map(str.split, said) if what in {"confirming", "confirmed"}}
    last = max((int(number) for what, number, *_ in map(str.split, said) if what == "id"), default=0)
    with (
        closing(DedupKeyMaker.open(url_of(folder), sender="billing")) as keys,
        closing(SequenceIdMaker.open(url_of(folder), message_source_id="gateway")) as ids,
    ):
        pending = {one.reference: [one.key] for one in keys.pending()}
        for number in given.keys() - about:
            assert pending[number] == given[number]
        confirmed = {number for what, number, *_ in map(str.split, said) if what == "confirmed"}
        assert not pending.keys() & confirmed
        assert int(ids.next().partition(":")[0]) > last


def made_by_an_older_version(folder: Path, seed: str) -> None:
    """Make a store with rows, and with the tables of an earlier version."""
    made(folder)
    batches(folder, seed)
    migrate(url_object(url_of(folder)), "0003")


def upgraded(folder: Path, _seed: str) -> None:
    opened(url_of(folder)).close()
    say(1)


def check_upgraded(folder: Path, seed: str, said: list[str]) -> None:
    """Check that the store opens with either version's tables, and that nothing is lost."""
    del said
    opened(url_of(folder)).close()
    remembered, _ = list(models_of(steps_of(seed)))[-1]
    assert remembered_in(url_of(folder)) == remembered
    assert not audit(url_of(folder)).findings


MESSAGES = [f"message {number}" for number in range(30)]


def bridged(folder: Path, _seed: str) -> None:
    """Run a bridge from a broker in memory to a file. It says which messages it has acknowledged."""
    route = Route(url_of(folder), folder, "file")
    route.connection_id = "broker"
    route.send(*map(message, MESSAGES))
    bridge = open_from(route, partial(saying_source, route), settings=BridgeSettings(max_batch_size=4))
    bridge.run(stop_when_idle_secs=0)


def saying_source(route: Route) -> MemorySource:
    source = route.broker.source("orders")
    acknowledge = source.acknowledge

    def acknowledging(deliveries):
        acknowledge(deliveries)
        for delivery in deliveries:
            say(delivery.message.body.decode())

    source.acknowledge = acknowledging
    return source


def check_bridged(folder: Path, _seed: str, said: list[str]) -> None:
    """Check that each message is in the file once, after a bridge has taken those that weren't acknowledged."""
    route = Route(url_of(folder), folder, "file")
    route.connection_id = "broker"
    route.send(*(message(body) for body in MESSAGES if body not in said))
    route.run()
    assert sorted(route.effects()) == sorted(MESSAGES)


ROWS = [[Row(number, f"{number}") for number in range(start, start + 40)] for start in range(0, 320, 40)]
"""The rows of a compacted log's runs: the first makes the log, and each other adds to it."""


def compacted(folder: Path, rows: list[Row]) -> None:
    compacted_log(folder / "log", [rows[:-1], rows[-1:]], before=manifest_of(folder / "log"))


def first_compacted(folder: Path, _seed: str) -> None:
    (folder / "log").mkdir()
    compacted(folder, ROWS[0])


def grown(folder: Path, _seed: str) -> None:
    for number, rows in enumerate(ROWS[1:]):
        compacted(folder, rows)
        say(number)


def check_grown(folder: Path, _seed: str, said: list[str]) -> None:
    """Check that the log has the rows of each run that was said, and those of the next as a whole or not at all. It can grow."""
    runs = [list(chain.from_iterable(ROWS[: len(said) + 1 + more])) for more in (0, 1)]
    assert (left := read(folder / "log", time_unit="us")) in runs, left
    compacted(folder, later := [Row(9_998, "later"), Row(9_999, "last")])
    assert read(folder / "log", time_unit="us") == left + later


class Program(NamedTuple):
    """A program, and a check of what is left of its work."""

    prepare: Callable[[Path, str], None]
    """Makes what must exist before the program starts."""
    run: Callable[[Path, str], None]
    check: Callable[[Path, str, list[str]], None]
    """Fails if what is left contradicts what the program said."""


PROGRAMS = {
    "batches": Program(made, batches, check_batches),
    "joined": Program(made, joined, check_batches),
    "recorded": Program(made, recorded, check_recorded),
    "sender": Program(nothing, sender, check_sender),
    "upgraded": Program(made_by_an_older_version, upgraded, check_upgraded),
    "compacted": Program(first_compacted, grown, check_grown),
    "bridged": Program(nothing, bridged, check_bridged),
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]].run(Path(sys.argv[2]), sys.argv[3])
