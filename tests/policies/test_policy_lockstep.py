"""Whatever comes, each policy and its naive model give the same answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.message import Receipt
from receiver.policies import policy
from tests.choosing import cases
from tests.policies.cases import KINDS, Kind, Lockstep


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@cases()
@given(data=st.data())
def test_any_steps(kind: Kind, data):
    pair = Lockstep(kind, data.draw(kind.sizes))
    for step in data.draw(kind.many_steps()):
        pair.do(step)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@cases(10)
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_long_runs(kind: Kind, data, random):
    pair = Lockstep(kind, data.draw(kind.sizes))
    drawn = data.draw(kind.many_steps(40))
    for _ in range(200):
        pair.do(random.choice(drawn))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@cases(30)
@given(data=st.data())
def test_receive_many_is_receive_many_times(kind: Kind, data):
    sizes = data.draw(kind.sizes)
    one_by_one = Lockstep(kind, sizes)
    receipts, decisions = [], []
    for _, id_, source, step_us, sent_ms in data.draw(st.lists(kind.receipts(), max_size=40)):
        decisions += one_by_one.do(("receive", id_, source, step_us, sent_ms))
        receipts.append(Receipt(id_, source, one_by_one.now_us, jms_timestamp_ms=sent_ms))
    many = policy(kind.text(*sizes))
    assert many.receive_many(receipts) == decisions
    if many.goes_by_send_time:
        many.advance(min_msg_time_us=12_000)
        one_by_one.do(("advance", 12))
    one_by_one.compare(many)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_receive_many_takes_plain_tuples(kind: Kind):
    id_ = kind.ids[0]
    decisions = policy(kind.text(*kind.roomy)).receive_many([(id_, "s", 0), (None, None, 1), (id_, None, 2)])
    assert [decision.verdict for decision in decisions] == ["new", "unchecked", "duplicate"]


def test_a_send_time_of_0_counts_as_missing():
    made = policy("cmq:retry=0,network=0")
    made.receive("a", received_at_us=5_000, jms_timestamp_ms=0)
    made.advance(5_000)
    assert "a" in made
