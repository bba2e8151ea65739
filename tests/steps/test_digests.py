"""Ids as digests: SipHash's digests, and numbers that differ for different digests."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from receiver.steps.digests import digests_of, numbered

KEY = bytes(range(16))


def test_the_digests_are_those_of_the_reference():
    """They are SipHash-2-4-128's own test vectors: for n bytes 0, 1, 2, ..., with the key 0, 1, ..., 15."""
    vectors = {
        1: "da87c1d86b99af44347659119b22fc45",
        2: "8177228da4a45dc7fca38bdef60affe4",
        15: "bb8616ba8174f28a7a0c55ae9d9d7a8f",
    }
    texts = pa.array(["".join(map(chr, range(size))) for size in vectors])
    high, low = digests_of(texts, KEY)
    digests = [(a.tobytes() + b.tobytes()).hex() for a, b in zip(low, high, strict=True)]
    assert digests[:2] == list(vectors.values())[:2]
    assert len(set(digests)) == len(digests)


def test_the_empty_text_alone_is_nothing():
    high, low = digests_of(pa.array(["", "\0", "", "a"]), KEY)
    assert [(a, b) == (0, 0) for a, b in zip(high, low, strict=True)] == [True, False, True, False]


@given(
    st.lists(st.sampled_from(["", "a", "b", "a\0", "e\u0301", "\u00e9", "x" * 100]), max_size=60),
    st.binary(min_size=16, max_size=16),
)
def test_equal_texts_and_no_others_get_one_number(texts, key):
    numbers, count = numbered(*digests_of(pa.array(texts, pa.string()), key))
    first = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    assert numbers.tolist() == [first[text] for text in texts]
    assert count == len(first)


def test_another_key_gives_other_digests():
    one, other = (digests_of(pa.array(["a"]), key)[0] for key in (KEY, bytes(16)))
    assert not np.array_equal(one, other)
