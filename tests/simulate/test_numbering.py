"""Numbers of texts are equal exactly if their bytes are."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.simulate import numbering
from receiver.simulate.numbering import TextNumbers
from tests.choosing import cases

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
HOSTILE = ["", " ", "\0", "\0\0", "a", "a\0", "é", "e\u0301", "x" * 65_536, "x" * 65_535 + "y", "12345678", "123456789"]


@given(st.lists(st.lists(TEXTS | st.sampled_from(HOSTILE), max_size=30), max_size=5))
@cases(100)
def test_numbers_count_first_comings_and_keep_the_text(pieces):
    interned = TextNumbers()
    numbers = [number for piece in pieces for number in interned.number(pa.array(piece, pa.string())).tolist()]
    texts = [text for piece in pieces for text in piece]
    distinct = list(dict.fromkeys(texts))
    assert numbers == [distinct.index(text) for text in texts]
    assert interned.count == len(distinct)
    if numbers:
        assert interned.texts(pa.array(numbers, pa.int32()).to_numpy()).to_pylist() == texts


def test_a_slice_is_read_from_where_it_starts():
    texts = pa.array(["zero", "one", "two", "one"], pa.string())
    interned = TextNumbers()
    assert interned.number(texts[1:]).tolist() == [0, 1, 0]
    assert interned.texts(interned.number(texts[2:3])).to_pylist() == ["two"]


def test_the_table_grows_with_its_texts():
    texts = [f"id-{number}" for number in range(50_000)]
    interned = TextNumbers()
    for start in range(0, len(texts), 7_000):
        interned.number(pa.array(texts[start : start + 7_000], pa.string()))
    again = interned.number(pa.array(texts[::-1], pa.string()))
    assert again.tolist() == list(range(49_999, -1, -1))
    assert interned.texts(again[:3]).to_pylist() == texts[:-4:-1]


@pytest.mark.parametrize("hash_", [7, 2**64 - 1], ids=["first slot", "last slot"])
def test_nothing_rests_on_hashes_being_unequal(monkeypatch, hash_):
    monkeypatch.setattr(numbering, "hash_texts", lambda offsets, *_: np.full(len(offsets) - 1, hash_, np.uint64))
    texts = pa.array([*HOSTILE, *HOSTILE, *(f"{number}" for number in range(3_000))], pa.string())
    interned = TextNumbers()
    interned.number(texts[:20])
    numbers = interned.number(texts)
    assert interned.count == len(set(texts.to_pylist()))
    assert interned.texts(numbers).to_pylist() == texts.to_pylist()
