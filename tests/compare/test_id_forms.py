"""Columns of ids are read as the policies read each id."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from compared_logs import RGMID, SEQUENCE
from hypothesis import example, given
from hypothesis import strategies as st

from receiver.compare.compiled_policies import rgmids_of, sequences_of
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


def receipts_of(texts):
    """The part of a log that is needed to read these ids, with one receipt for each."""
    ids = TextNumbers()
    numbers = ids.number(pa.array(["", *texts], pa.string()))
    return SimpleNamespace(ids=ids, id_number=numbers[1:])


def refusal(read, *arguments):
    try:
        read(*arguments)
    except IdFormatError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("read", "parse", "near", "good"),
    [
        (sequences_of, parse_sequence, near_sequences, SEQUENCE),
        (rgmids_of, ReplicationGroupMessageId.parse, near_rgmids(), RGMID),
    ],
)
def test_the_first_id_is_refused_that_the_policy_refuses(read, parse, near, good):
    @given(st.lists(near.filter(bool) | st.sampled_from(good), unique=True, max_size=4))
    @example(good)
    @example([])
    def judged_alike(texts):
        refused = refusal(read, receipts_of(texts))
        by_policy = [(row, error) for row, text in enumerate(texts) if (error := refusal(parse, text))]
        if not by_policy:
            assert refused is None
        else:
            row, error = by_policy[0]
            assert (refused.message, refused.hint) == (f"in row {row}, {error.message}", error.hint)

    judged_alike()


numbers = st.integers(0, 20) | st.integers(2**63 - 2, 2**63 + 2) | st.integers(0, 10**40)


@given(
    st.lists(st.builds("{}{}:{}".format, st.sampled_from(["", "0", "000"]), numbers, st.text(max_size=3)), unique=True)
)
def test_sequence_numbers_and_producers_are_those_of_the_policy(texts):
    read = sequences_of(receipts_of(texts))
    expected = [parse_sequence(text) for text in texts]
    ours = list(zip(read.numbers[1:].tolist(), read.producers[1:].tolist(), strict=True))
    for (number, producer), (seq_no, source) in zip(ours, expected, strict=True):
        for (other, other_producer), (other_seq_no, other_source) in zip(ours, expected, strict=True):
            assert ((number < other), (number == other)) == ((seq_no < other_seq_no), (seq_no == other_seq_no))
            assert (producer == other_producer) == (source == other_source)
    assert all(0 <= producer < read.producer_count and number >= 0 for number, producer in ours)


hexadecimal = [st.text("0123456789abcdefABCDEF", min_size=digits, max_size=digits) for digits in (5, 11, 8, 8)]


@given(st.lists(st.builds("rmid1:{}-{}-{}-{}".format, *hexadecimal), unique=True))
def test_replication_group_message_ids_are_those_of_the_policy(texts):
    origins, numbers = rgmids_of(receipts_of(texts))
    parsed = [ReplicationGroupMessageId.parse(text) for text in texts]
    assert origins[1:].tolist() == [rgmid.origin for rgmid in parsed]
    assert numbers[1:].tolist() == [rgmid.number for rgmid in parsed]


def test_ids_are_read_through_stretches(monkeypatch):
    monkeypatch.setattr("receiver.simulate.numbering._SLICE", 3)
    read = sequences_of(receipts_of([f"{n}:{n % 4}" for n in range(20)] + ["9" * 30 + ":0"]))
    assert [read.producers[1 + n] for n in range(20)] == [read.producers[1 + n % 4] for n in range(20)]
    assert len(set(read.producers[1:].tolist())) == 4
    assert (np.diff(read.numbers[1:]) > 0).all()
    refused = refusal(sequences_of, receipts_of([f"{n}:s" for n in range(10)] + ["odd"]))
    assert refused.message.startswith("in row 10, ")
