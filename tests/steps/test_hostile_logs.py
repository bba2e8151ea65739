"""Logs with extreme sources and domains: cut into chunks they give the same as held whole."""

import numpy as np
import pytest
from cut_logs import Cutting, File, written
from test_chunked import analysed_in_chunks, analysed_whole, assert_same

from receiver.simulate.question import Question
from tests.choosing import slow
from tests.logs.reading import Row

ROWS = 24_000


def cycling(draw: np.random.Generator) -> list[Row]:
    """One source sends the same few ids for ever, one sends new ids, and one is slow."""
    kinds = draw.choice(["cycle", "new", "slow"], ROWS, p=[0.6, 0.398, 0.002]).tolist()
    return [
        Row(1_000 * index, f"c{index % 700}" if kind == "cycle" else f"{kind}{index}", kind)
        for index, kind in enumerate(kinds)
    ]


def ended(draw: np.random.Generator) -> list[Row]:
    """Sources that only send at the beginning. Others repeat their ids at the end."""
    ids = [f"e{number}" for number in range(800)]
    middle = [Row(10_000 + index, f"m{index}", "busy") for index in range(ROWS - 1_600)]
    late = [Row(10_000 + ROWS + index, id_, "busy") for index, id_ in enumerate(draw.permutation(ids).tolist())]
    return [*(Row(index, id_, f"gone{index % 3}") for index, id_ in enumerate(ids)), *middle, *late]


def lopsided(draw: np.random.Generator) -> list[Row]:
    """One source sends 90 %. A tenth of the ids come again at any distance, from their source or from others."""
    back = np.where(draw.random(ROWS) < 0.1, (draw.random(ROWS) ** 3 * np.arange(ROWS)).astype(int), 0)
    sources = np.where(draw.random(ROWS) < 0.9, "hot", "cold")
    return [
        Row(1_000 * (index // 7), f"{index - far}", str(source))
        for index, (far, source) in enumerate(zip(back.tolist(), sources.tolist(), strict=True))
    ]


def many_sources(draw: np.random.Generator) -> list[Row]:
    ids = draw.integers(0, ROWS // 2, ROWS).tolist()
    return [Row(1_000 * index, f"{id_}", f"s{id_ % 10_000}") for index, id_ in enumerate(ids)]


def many_domains(draw: np.random.Generator) -> list[Row]:
    domains, ids = draw.integers(0, 7_000, ROWS).tolist(), draw.integers(0, 3, ROWS).tolist()
    return [
        Row(1_000 * index, f"{id_}", "s", "c", f"q{domain}")
        for index, (domain, id_) in enumerate(zip(domains, ids, strict=True))
    ]


def stepping_back(draw: np.random.Generator) -> list[Row]:
    times = np.cumsum(draw.choice([0, 1, 5, 1_000, -900], ROWS)) + 10_000_000
    ids = draw.integers(0, ROWS, ROWS).tolist()
    return [
        Row(time, f"{id_ if id_ % 5 else ''}", f"s{id_ % 3}") for time, id_ in zip(times.tolist(), ids, strict=True)
    ]


@pytest.mark.costly
@pytest.mark.thinned(3)
@pytest.mark.parametrize("log", [cycling, ended, lopsided, many_sources, slow(many_domains), stepping_back])
@pytest.mark.parametrize(
    "question", [Question("destination"), Question("destination", [0, 5, 1_000], [0, 10_000, 10**9])]
)
def test_it_is_analysed_as_if_it_were_whole(log, question):
    rows = log(np.random.default_rng(1))
    cutting = Cutting(rows_per_unit=5_000, piece_rows=2_000, sample_rows=50, chunk_rows=2_500, partition_rows=6_000)
    with written([File("parquet", rows, 3_000)]) as paths:
        assert_same(analysed_in_chunks(paths, question, cutting), analysed_whole(paths, question))
