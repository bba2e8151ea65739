"""Random logs in files of every format; and the steps from files to chunks, with everything cut small."""

import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from receiver.domains import domain_key
from receiver.logs import ReadOptions
from receiver.logs.files import find_files
from receiver.steps.arrow_rows import Row as Made
from receiver.steps.chunks import assemble as assemble_chunks
from receiver.steps.link import cut_ids, link
from receiver.steps.log import reports_of
from receiver.steps.plan import CutPlan, plan_of
from receiver.steps.read import Reading, reading, units_of
from receiver.steps.schemas import ChunkReceipts, Piece, Unit, UnitReport
from tests.logs.reading import FORMATS, Row
from tests.steps.plain_flow import PlainFlow

US = ReadOptions(time_unit="us")
DIGEST_KEY = bytes(range(16))


class File(NamedTuple):
    ending: str
    rows: list[Row]
    rows_per_group: int = 3
    """In Parquet."""


class Cutting(NamedTuple):
    """Sizes on which no figure may depend."""

    rows_per_unit: int = 1
    piece_rows: int = 2
    sample_rows: int = 1
    chunk_rows: int = 5
    chunks_per_domain: int | None = None
    partition_rows: int = 3
    cores: int = 1
    seed: int | None = 0


class Assembled(NamedTuple):
    units: list[Unit]
    reports: list[UnitReport]
    plan: CutPlan
    pieces: PlainFlow

    def ids(self) -> PlainFlow:
        """`Ids` and `Latest`."""
        return cut_ids(self.pieces.only(Piece), self.plan)

    def chunks(self) -> list[ChunkReceipts]:
        pieces = self.pieces.only(Piece)
        links, _, _ = link(pieces, self.plan)
        before_us = np.full(self.plan.chunks, -1, np.int64)
        chunks, _, _ = assemble_chunks(pieces, links, self.plan, before_us)
        return [row.value for row in chunks.only(ChunkReceipts).rows]


def write(folder: Path, files: Sequence[File]) -> list[str]:
    paths = []
    for index, file in enumerate(files):
        path = folder / f"{index:02}.{file.ending}"
        path.write_bytes(FORMATS[file.ending](file.rows))
        if file.ending == "parquet":
            pq.write_table(pq.read_table(path, use_threads=False), path, row_group_size=file.rows_per_group)
        paths.append(str(path))
    return paths


@contextmanager
def written(files: Sequence[File]):
    with tempfile.TemporaryDirectory() as folder:
        yield write(Path(folder), files)


@contextmanager
def small_pieces(rows: int):
    """Have the readers give so many rows of Parquet at a time, and about as many rows of text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("receiver.logs.parquet._PIECE_ROWS", rows)
        patch.setattr("receiver.logs.parquet.BATCH_ROWS", rows)
        patch.setattr("receiver.logs.source.FIRST_BLOCK_BYTES", 50 * rows)
        patch.setattr("receiver.logs.source.BLOCK_BYTES", 50 * rows)
        patch.setattr("receiver.logs.opening.PIECE_BYTES", 50 * rows)
        patch.setattr("receiver.logs.opening._HEAD_BYTES", 200)
        yield


def read_units(paths: Sequence[str], cutting: Cutting, options: ReadOptions = US) -> tuple[list[Unit], PlainFlow]:
    units = units_of(find_files(paths), rows_per_unit=cutting.rows_per_unit)
    how = Reading(options, DIGEST_KEY, with_ids=True, sample_rows=cutting.sample_rows)
    with small_pieces(cutting.piece_rows):
        flow = PlainFlow([Made(unit.number, unit) for unit in units], seed=cutting.seed or 0)
        return units, flow.map(partial(reading, how), Piece, UnitReport)


def assemble(paths: Sequence[str], cutting: Cutting, key: str = "default", options: ReadOptions = US) -> Assembled:
    units, flow = read_units(paths, cutting, options)
    reports = reports_of([row.value for row in flow.only(UnitReport).rows], units, domain_key(key))
    plan = plan_of(
        reports,
        units,
        domain_key(key),
        chunk_rows=cutting.chunk_rows,
        partition_rows=cutting.partition_rows,
        cores=cutting.cores,
        chunks_per_domain=cutting.chunks_per_domain,
        keeps_rows=True,
    )
    return Assembled(units, reports, plan, flow)


_rows = st.builds(
    Row,
    received_at=st.just(0),
    unique_message_id=st.sampled_from(["a", "b", "caf\u00e9", "x" * 40, "", "\0"]),
    message_source_id=st.sampled_from(["", "s", "t"]),
    connection_id=st.sampled_from(["c", "d", ""]),
    destination=st.sampled_from(["q", "queue://q", "topic://t", "queue://"]),
    receiver_id=st.sampled_from(["", "r"]),
    jms_redelivered=st.booleans(),
    jms_timestamp=st.sampled_from([0, 0, 1]),
    body_digest=st.sampled_from(["", "x", "y"]),
)


@st.composite
def files(draw, *, most_files: int = 4, most_rows: int = 25) -> list[File]:
    """Logs whose times tie within and across files, and step back. A part of the files has only a header."""
    cut = []
    for _ in range(draw(st.integers(1, most_files))):
        rows = draw(st.lists(_rows, max_size=most_rows))
        steps = draw(st.lists(st.sampled_from([0, 0, 1, 3, -4]), min_size=len(rows), max_size=len(rows)))
        times = np.maximum(0, draw(st.integers(0, 30)) + np.cumsum(steps, dtype=int)).tolist()
        timed = [row._replace(received_at=time) for row, time in zip(rows, times, strict=True)]
        cut.append(File(draw(st.sampled_from(["csv", "parquet"])), timed, draw(st.integers(1, 6))))
    cut.append(File(draw(st.sampled_from(sorted(FORMATS))), [draw(_rows)]))
    return cut


cuttings = st.builds(
    Cutting,
    rows_per_unit=st.integers(1, 30),
    piece_rows=st.integers(1, 30),
    sample_rows=st.integers(1, 5),
    chunk_rows=st.integers(1, 40),
    chunks_per_domain=st.sampled_from([None, None, 1, 2, 7, 64]),
    partition_rows=st.integers(1, 100),
    cores=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)


def in_order(files_: Sequence[File]) -> list[tuple[int, int]]:
    """The (file, row) of each receipt, in the order of the whole log, worked out anew."""
    keyed = []
    for index, file in enumerate(files_):
        latest = 0
        for row, receipt in enumerate(file.rows):
            latest = max(latest, receipt.received_at)
            keyed.append((latest, index, row))
    return [(index, row) for _, index, row in sorted(keyed)]
