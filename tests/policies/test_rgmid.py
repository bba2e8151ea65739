"""Replication group message ids: which texts are valid, and their order."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.policies import IdFormatError, NotComparableError, ReplicationGroupMessageId

GOOD = "rmid1:0d77c-b0b2e66aece-00000000-00000001"
NUMBERS = st.integers(0, (1 << 64) - 1)
NEAR = st.builds(lambda base, step: min(max(base + step, 0), (1 << 64) - 1), NUMBERS, st.integers(-1, 1))

MALFORMED = {
    "empty": "",
    "no prefix": "0d77c-b0b2e66aece-00000000-00000001",
    "prefix only": "rmid1:",
    "prefix without its colon": GOOD.replace("rmid1:", "rmid1"),
    "prefix in capitals": GOOD.replace("rmid1", "RMID1"),
    "prefix with one capital": GOOD.replace("rmid1", "Rmid1"),
    "prefix of another version": GOOD.replace("rmid1", "rmid2"),
    "prefix twice": "rmid1:" + GOOD,
    "space after the prefix": GOOD.replace(":", ": "),
    "first group short": GOOD.replace("0d77c", "0d77"),
    "first group long": GOOD.replace("0d77c", "0d77cc"),
    "second group short": GOOD.replace("b0b2e66aece", "b0b2e66aec"),
    "second group long": GOOD.replace("b0b2e66aece", "b0b2e66aecee"),
    "third group short": GOOD.replace("-00000000-", "-0000000-"),
    "third group long": GOOD.replace("-00000000-", "-000000000-"),
    "fourth group short": GOOD[:-1],
    "fourth group long": GOOD + "0",
    "a digit moved to the next group": "rmid1:0d77-cb0b2e66aece-00000000-00000001",
    "first group empty": GOOD.replace("0d77c", ""),
    "three groups": GOOD.rpartition("-")[0],
    "five groups": GOOD + "-00000001",
    "no separators": GOOD.replace("-", ""),
    "other separators": GOOD.replace("-", ":"),
    "a separator doubled": GOOD.replace("0d77c-", "0d77c--"),
    "a typographical hyphen": GOOD.replace("0d77c-", "0d77c\N{HYPHEN}"),
    "a separator at the end": GOOD + "-",
    "a letter beyond f": GOOD.replace("0d77c", "0d77g"),
    "a sign": GOOD.replace("-00000001", "-+0000001"),
    "an underscore": GOOD.replace("-00000001", "-0000_001"),
    "hexadecimal as Python writes it": GOOD.replace("-00000001", "-0x000001"),
    "a full-width digit": GOOD[:-1] + "\N{FULLWIDTH DIGIT ONE}",
    "an Arabic digit": GOOD[:-1] + "\N{ARABIC-INDIC DIGIT ONE}",
    "a full-width letter": GOOD.replace("0d77c", "0d77\N{FULLWIDTH LATIN SMALL LETTER C}"),
    "a space in front": " " + GOOD,
    "a space behind": GOOD + " ",
    "a line break behind": GOOD + "\n",
    "a line break in front": "\n" + GOOD,
    "U+0000 behind": GOOD + "\0",
    "a byte order mark": "\N{ZERO WIDTH NO-BREAK SPACE}" + GOOD,
    "two ids": f"{GOOD},{GOOD}",
    "bytes": GOOD.encode(),
    "a number": 1,
    "nothing": None,
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_each_way_of_being_malformed(text):
    with pytest.raises(IdFormatError, match=r"isn't a replication group message id \(those are like rmid1:"):
        ReplicationGroupMessageId.parse(text)


def test_the_text_is_shown_but_not_without_end():
    with pytest.raises(ValueError, match="isn't a replication") as refused:
        ReplicationGroupMessageId.parse("x" * 1_000_000)
    assert len(str(refused.value)) < 300


@given(NUMBERS, NUMBERS, st.randoms(use_true_random=False))
def test_any_case_is_read_and_lower_case_is_written(origin, number, random):
    id_ = ReplicationGroupMessageId(origin, number)
    prefix, digits = str(id_)[:6], str(id_)[6:]
    assert prefix == "rmid1:"
    assert [len(group) for group in digits.split("-")] == [5, 11, 8, 8]
    assert digits == digits.lower()
    assert digits.replace("-", "") == f"{origin:016x}{number:016x}"
    mixed = "".join(random.choice([digit.lower(), digit.upper()]) for digit in digits)
    assert ReplicationGroupMessageId.parse(prefix + mixed) == id_
    assert {id_: 1}[pickle.loads(pickle.dumps(id_))] == 1  # noqa: S301 - our own


@given(NUMBERS, NUMBERS, NEAR)
def test_one_origins_ids_are_ordered_as_numbers_of_64_bits(origin, one, other):
    ids = [ReplicationGroupMessageId(origin, number) for number in (one, other)]
    assert ids[0].compare(ids[1]) == (one > other) - (one < other)
    assert (ids[0].compare(ids[1]) == 0) == (ids[0] == ids[1])
    assert ids[1].compare(ids[0]) == -ids[0].compare(ids[1])


@given(st.tuples(NUMBERS, NEAR).filter(lambda origins: origins[0] != origins[1]), NUMBERS)
def test_ids_of_two_origins_have_no_order(origins, number):
    one, other = (ReplicationGroupMessageId(origin, number) for origin in origins)
    with pytest.raises(NotComparableError, match="take the message for a new one"):
        one.compare(other)
    assert one != other


@pytest.mark.parametrize(("origin", "number"), [(-1, 0), (0, -1), (1 << 64, 0), (0, 1 << 64)])
def test_numbers_beyond_64_bits_have_no_text(origin, number):
    with pytest.raises(IdFormatError, match="64 bits"):
        ReplicationGroupMessageId(origin, number)
