"""Any policy in any store judges as the same policy in memory, whoever receives, whatever is undone or resized."""

import uuid
from contextlib import suppress
from copy import deepcopy

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from sqlalchemy import NullPool, create_engine

from receiver import Receiver
from receiver.message import ReceiptRow
from receiver.policies import policy
from receiver.policies.names import policy_of_kind
from tests.choosing import examples
from tests.durable.opened import DUPLICATE, MEMORY, NEW, UndoError, opened
from tests.policies.cases import KINDS, Kind, answer_of

WHO = st.integers(0, 2)


class InMemory:
    """A policy that never stops, and a row for each receipt, as in a store that deletes none."""

    def __init__(self, text: str) -> None:
        self.policy = policy(text)
        self.rows: dict[int, ReceiptRow] = {}

    def receive(self, id_, source, now_us, sent_ms):
        more = {} if sent_ms is None else {"jms_timestamp_ms": sent_ms}
        decision = self.policy.receive(id_, source, received_at_us=now_us, **more)
        if id_ and (decision.age_us is None or self.policy.records_duplicates):
            serial = self.policy.serial
            self.rows[serial] = ReceiptRow(
                serial, self.policy.latest_us, None, source, id_, policy_state=self.policy.policy_state
            )
        return decision

    def resize(self, text: str) -> None:
        """Replay what is remembered through an empty policy of the other sizes, oldest first. The domain's time
        stays."""
        before, self.policy = self.policy, policy(text)
        entries = set(before.entries())
        rows = [row for row in self.rows.values() if row.seq in entries]
        if before.serial not in {0, *entries}:
            # The latest receipt's number and time stay, in a row like a duplicate's, which changes nothing else.
            rows.append(ReceiptRow(before.serial, before.latest_us, 0, None, ""))
        self.policy.replay(rows, before.clock_us)


class PolicyMachine(RuleBasedStateMachine):
    def __init__(self, url: str, kind: Kind) -> None:
        super().__init__()
        self.url, self.kind = url, kind
        self.options = {"domain": f"name:{uuid.uuid4().hex}"}
        self.now_us = 0
        self.receivers: list[Receiver] = []

    @initialize(data=st.data(), receivers=st.integers(1, 3))
    def start(self, data, receivers):
        text = self.kind.text(*data.draw(self.kind.sizes))
        self.judge = InMemory(text)
        receivers = 1 if self.url == MEMORY else receivers
        self.receivers = [opened(self.url, policy=text, **self.options) for _ in range(receivers)]

    def _steps(self, data):
        return [step for step in data.draw(self.kind.many_steps(12, stored=True)) if step[0] in {"receive", "advance"}]

    def _do(self, batch, steps):
        for what, *arguments in steps:
            if what == "advance":
                batch.advance(min_msg_time_us=arguments[0] * 1_000)
                self.judge.policy.advance(arguments[0] * 1_000)
                continue
            id_, source, step_us, sent_ms = arguments
            self.now_us = max(0, self.now_us + step_us)
            decision = batch.receive(id_, source, received_at_us=self.now_us, jms_timestamp_ms=sent_ms)
            assert answer_of(decision) == answer_of(self.judge.receive(id_, source, self.now_us, sent_ms))

    def _one(self, who):
        return who % len(self.receivers)

    def _agree(self, receiver):
        assert receiver.status().rDupIds == self.judge.policy.remembered_ids
        assert receiver.session.cache.policy.entries() == self.judge.policy.entries()

    @rule(who=WHO, data=st.data(), undo=st.sampled_from([False, False, True]))
    def batch(self, who, data, undo):
        receiver, before = self.receivers[self._one(who)], deepcopy(self.judge)
        with suppress(UndoError), receiver.batch() as batch:
            self._do(batch, self._steps(data))
            if undo:
                raise UndoError
        if undo:
            self.judge = before
        else:
            self._agree(receiver)

    @precondition(lambda self: self.url != MEMORY)
    @rule(who=WHO, other=WHO, data=st.data(), commit=st.booleans())
    def transaction(self, who, other, data, commit):
        before = deepcopy(self.judge)
        engine = create_engine(self.url, poolclass=NullPool)
        with engine.connect() as connection:
            for one in (who, other):
                with self.receivers[self._one(one)].batch(connection) as batch:
                    self._do(batch, self._steps(data))
            if commit:
                connection.commit()
            else:
                connection.rollback()
                self.judge = before

    @precondition(lambda self: self.url != MEMORY)
    @rule(who=WHO)
    def reopen(self, who):
        self.receivers[self._one(who)].close()
        receiver = self.receivers[self._one(who)] = opened(self.url, **self.options)
        self._agree(receiver)

    @precondition(lambda self: self.url != MEMORY and self.kind.name != "apama")
    @rule(who=WHO, data=st.data())
    def resize(self, who, data):
        text = self.kind.text(*data.draw(self.kind.sizes))
        if policy(text).sizes != self.judge.policy.sizes:
            self.judge.resize(text)
        self.receivers[self._one(who)].close()
        receiver = self.receivers[self._one(who)] = opened(self.url, policy=text, **self.options)
        self._agree(receiver)

    def teardown(self):
        for receiver in self.receivers:
            receiver.close()


EXAMPLES = {"memory": 10, "sqlite": 25, "postgresql": 6}


@pytest.mark.thinned(3)
@pytest.mark.scaled
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_as_in_memory(any_url, kind, request):
    database = next(name for name in EXAMPLES if f"[{name}-" in request.node.name or f"-{name}]" in request.node.name)
    run_state_machine_as_test(
        lambda: PolicyMachine(any_url, kind),
        settings=settings(
            max_examples=examples(EXAMPLES[database]),
            stateful_step_count=12,
            # Shrinking a case takes minutes on a server, and what fails on one database fails on the other.
            phases=[Phase.explicit, Phase.reuse, Phase.generate] + ([Phase.shrink] if database != "postgresql" else []),
        ),
    )


def test_a_resize_leaves_the_queues_minimum_as_it_was(store_url):
    """A key that the minimum has passed by more than the new limit is forgotten, and a lower minimum is ignored."""
    with opened(store_url, policy="cmq:retry=15,network=0") as receiver, receiver.batch() as batch:
        batch.receive("a", received_at_us=0, jms_timestamp_ms=88_000)
        batch.advance(min_msg_time_us=100_000_000)
    with opened(store_url, policy="cmq:retry=10,network=0") as receiver, receiver.batch() as batch:
        batch.advance(min_msg_time_us=0)
        for id_ in "aabb":
            assert batch.receive(id_, received_at_us=0, jms_timestamp_ms=89_000).verdict == NEW
        assert batch.receive("c", received_at_us=0, jms_timestamp_ms=90_000).verdict == NEW
        assert batch.receive("c", received_at_us=0, jms_timestamp_ms=90_000).verdict == DUPLICATE


def test_stores_know_every_policy_by_its_kind_and_sizes():
    for kind in KINDS:
        made = policy(kind.text(*kind.roomy))
        again = policy_of_kind(made.kind, *made.sizes)
        assert (type(again), again.sizes) == (type(made), made.sizes)
