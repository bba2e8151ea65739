"""Ids read where their bytes stand are read as the policies read them."""

import pyarrow as pa
import pytest
from compared_logs import RGMID, SEQUENCE
from hypothesis import example, given
from hypothesis import strategies as st

from receiver.compare.id_forms import first_not_rgmid, first_not_sequence, number_producers
from receiver.errors import IdFormatError
from receiver.policies import ReplicationGroupMessageId
from receiver.policies.sequence import parse_sequence
from receiver.simulate.numbering import TextNumbers

near_sequences = st.one_of(
    st.text("0129:/aé٣ -+\n\x00", max_size=8),
    st.builds("{}:{}".format, st.integers(), st.text(max_size=3)),
    st.sampled_from([f"{'7' * digits}:s" for digits in (999, 1_000, 1_001, 5_000)]),
)


@st.composite
def near_rgmids(draw):
    """Mostly one character away from a good id."""
    text = draw(st.sampled_from(RGMID))
    index = draw(st.integers(0, len(text)))
    return text[:index] + draw(st.text("09afAFgG-:rR/@`é \x00", max_size=1)) + text[index + draw(st.integers(0, 1)) :]


def numbered(texts):
    ids = TextNumbers()
    ids.number(pa.array(["", *texts], pa.string()))
    return ids


def is_fit(parse, text):
    try:
        parse(text)
    except IdFormatError:
        return False
    return True


@pytest.mark.parametrize(
    ("first_unfit", "parse", "near", "good"),
    [
        (first_not_sequence, parse_sequence, near_sequences, SEQUENCE),
        (first_not_rgmid, ReplicationGroupMessageId.parse, near_rgmids(), RGMID),
    ],
)
def test_the_first_id_is_found_that_the_policy_refuses(first_unfit, parse, near, good):
    @given(st.lists(near.filter(bool) | st.sampled_from(good), unique=True, max_size=4))
    @example(good)
    @example([])
    def judged_alike(texts):
        unfit = [number for number, text in enumerate(texts, 1) if not is_fit(parse, text)]
        assert first_unfit(*numbered(texts).buffers()) == (unfit[0] if unfit else -1)

    judged_alike()


@given(st.lists(st.builds("{}:{}".format, st.integers(0), st.text(max_size=3)), unique=True))
def test_ids_of_one_source_have_one_producer(texts):
    producers, count = number_producers(numbered(texts))
    sources = [parse_sequence(text)[1] for text in texts]
    assert len(set(zip(producers[1:].tolist(), sources, strict=True))) == len(set(sources)) == len(set(producers[1:]))
    assert all(0 <= producer < count for producer in producers.tolist())


def test_producers_are_numbered_through_stretches(monkeypatch):
    monkeypatch.setattr("receiver.simulate.verdict_rows._BATCH_ROWS", 3)
    producers, _ = number_producers(numbered([f"{n}:{n % 4}" for n in range(20)]))
    assert [producers[1 + n] for n in range(20)] == [producers[1 + n % 4] for n in range(20)]
    assert len(set(producers[1:].tolist())) == 4
