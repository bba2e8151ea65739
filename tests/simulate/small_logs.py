"""Small logs for the tests of the simulation: as receipts, as columns, and judged by the naive model."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from model import Model

from receiver.domains import Channel, domain_key
from receiver.logs import LogBatch
from receiver.settings import SimulateSettings
from receiver.simulate.analysis import analyse
from receiver.simulate.figures import Analysis
from receiver.simulate.ingest import Receipts, ingest
from receiver.simulate.question import Question
from receiver.simulate.whole import WholeLog

SECOND_US = 1_000_000
TEXTS = ("unique_message_id", "message_source_id", "connection_id", "destination", "receiver_id", "body_digest")


class Receipt(NamedTuple):
    received_at_us: int
    unique_message_id: str = ""
    message_source_id: str = ""
    connection_id: str = "c"
    destination: str = "queue://q"
    receiver_id: str = ""
    jms_redelivered: bool = False
    jms_timestamp_ms: int = 0
    body_digest: str = ""


class Batches(Iterator[LogBatch]):
    """Batches that stand for what `read_logs` gives."""

    known_receipts = left_out = 0

    def __init__(self, batches: Iterable[LogBatch], columns_present: set[str]) -> None:
        self.columns_present = columns_present
        self._batches = iter(batches)

    def __next__(self) -> LogBatch:
        return next(self._batches)


def batches(
    log: Sequence[Receipt], *, rows: int = 7, lacking: Iterable[str] = (), dictionaries: bool = False
) -> Batches:
    present = set(Receipt._fields) - set(lacking)
    parts = [log[start : start + rows] for start in range(0, len(log), rows)]
    return Batches([_batch(part, present, dictionaries) for part in parts], present)


def _batch(part: Sequence[Receipt], present: set[str], dictionaries: bool) -> LogBatch:
    columns = dict(zip(Receipt._fields, zip(*part, strict=True), strict=True))
    texts = {name: pa.array(columns[name], pa.string()) for name in TEXTS if name in present}
    if dictionaries:
        texts = {name: column.dictionary_encode() for name, column in texts.items()}
    return LogBatch(
        received_at_us=np.array(columns["received_at_us"], np.int64),
        jms_redelivered=np.array(columns["jms_redelivered"]) if "jms_redelivered" in present else None,
        jms_timestamp_ms=np.array(columns["jms_timestamp_ms"], np.int64) if "jms_timestamp_ms" in present else None,
        **texts,
    )


def ingested(log: Sequence[Receipt], key: str = "default", **how) -> Receipts:
    return ingest(batches(log, **how), domain_key(key))


def analysed(log: Sequence[Receipt], key: str = "default", windows=None, expiries_us=None, **settings) -> Analysis:
    question = Question(key, windows, expiries_us, SimulateSettings(**settings))
    return analyse(WholeLog(ingested(log, key), max_missed=question.settings.max_missed), question)


def findings_of(log: Sequence[Receipt], key: str = "default", *, lean: bool = False, **how) -> dict[str, str]:
    """The texts of the findings, by id. With `lean`, the budget is so low that only `lean` can be recommended."""
    settings = SimulateSettings(budget_bytes=1) if lean else SimulateSettings()
    analysis = analyse(WholeLog(ingested(log, key, **how)), Question(key, settings=settings))
    return {finding.id: finding.text for finding in analysis.findings}


def domains_of(log: Sequence[Receipt], key: str = "default") -> list[str]:
    name = domain_key(key).name
    return [name(Channel(r.connection_id, r.destination, r.receiver_id)) for r in log]


class Judged(NamedTuple):
    verdicts: list[str]
    models: dict[str, Model]
    """The models by domain. Domains of unchecked receipts have one too."""

    @property
    def caught(self) -> int:
        return self.verdicts.count("duplicate")

    @property
    def peak_ids(self) -> int:
        return sum(model.peak_ids for model in self.models.values())


def judged(log: Sequence[Receipt], window: int, expiry_us: int, key: str = "default") -> Judged:
    """The naive model's verdicts on a log."""
    models: dict[str, Model] = {}
    verdicts = [
        models.setdefault(domain, Model(window, expiry_us)).receive(
            receipt.unique_message_id, receipt.message_source_id, receipt.received_at_us
        )
        for domain, receipt in zip(domains_of(log, key), log, strict=True)
    ]
    return Judged(verdicts, models)


def repeats(log: Sequence[Receipt], key: str = "default") -> list[int]:
    """The rows whose id has come before in their domain."""
    seen = set()
    rows = []
    for row, (domain, receipt) in enumerate(zip(domains_of(log, key), log, strict=True)):
        if receipt.unique_message_id and (domain, receipt.unique_message_id) in seen:
            rows.append(row)
        seen.add((domain, receipt.unique_message_id))
    return rows


@st.composite
def logs(draw, *, least: int = 1, most: int = 40) -> list[Receipt]:
    """Logs with few ids, so that many repeat; with ties, pauses, clocks that step back, receipts without id, and
    several domains."""
    steps = draw(st.lists(st.sampled_from([0, 0, 1, 3, 10, 40, -7]), min_size=least, max_size=most))
    times_us = np.maximum(0, 20 + np.cumsum(steps)).tolist()
    parts = {
        "unique_message_id": st.sampled_from(["a", "b", "c", "d", "e", "f", ""]),
        "message_source_id": st.sampled_from(["", "s", "t"]),
        "connection_id": st.sampled_from(["c", "c:d"]),
        "destination": st.sampled_from(["queue://q", "q", "topic://t"]),
        "receiver_id": st.sampled_from(["", "r"]),
        "jms_redelivered": st.booleans(),
        "body_digest": st.sampled_from(["", "x", "y"]),
    }
    return [Receipt(time_us, **draw(st.fixed_dictionaries(parts))) for time_us in times_us]


def with_a_repeat(log: list[Receipt]) -> list[Receipt]:
    """The log, with a repeat added at its end if it has none."""
    again = log[-1]._replace(unique_message_id="again")
    return log if repeats(log) else [*log, again, again]
