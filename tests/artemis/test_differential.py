"""A real broker lets through exactly the random sends and transactions that `ArtemisIdCache` accepts, whatever
restarts come."""

import random
import time
from collections import Counter, deque
from itertools import count

import pytest

from receiver.message import Verdict
from receiver.policies.artemis import ArtemisIdCache
from tests.artemis.sending import Kind, Session, Step
from tests.campaigns import survived

pytestmark = [pytest.mark.artemis, pytest.mark.slow]

SIZES = [0, 1, 2, 3, 7, 20, 50]
STEPS = 60
"""How many steps are drawn for each address in each life of the broker."""
ALREADY_GONE = 2
KINDS = {Kind.SEND: 60, Kind.COMMIT: 30, Kind.ABORT: 5, Kind.OPEN: 5}
MOST_IDS = 6
"""The most ids in a transaction. The smaller rings hold fewer."""
STOP, KILL, KILL_UNDER_WAY = ENDINGS = "stops", "kills at rest", "kills under way"
ADDRESSES_UNDER_WAY = 3
SENDS_UNDER_WAY = 300
HANDLED_WITHIN_SECS = 0.1


class Address:
    """An address, the steps at it, and the policy's judgement of them."""

    def __init__(self, name, size, draw, numbers):
        self.name = name
        self.size = size
        self.policy = ArtemisIdCache(size)
        self.under_way = []
        self._accepted = deque(maxlen=max(SIZES) + ALREADY_GONE)
        self._draw = draw
        self._numbers = numbers

    def step(self, kind=None):
        """The next step. Ids come again at once, while they are held, after they are forgotten, or never."""
        draw = self._draw
        kind = kind or draw.choices(list(KINDS), list(KINDS.values()))[0]
        ids = [f"id:{number}" for number in range(2 * self.size + 3)]
        # If ids were drawn blindly, hardly a long transaction would be accepted.
        if kind is not Kind.SEND and draw.random() < 0.8:
            ids = [id_ for id_ in ids if id_ not in self.policy]
        return Step(
            next(self._numbers), kind, draw.choices(ids, k=1 if kind is Kind.SEND else draw.randint(1, MOST_IDS))
        )

    def lets_through(self, step):
        """Whether the policy accepts the step. Afterwards the policy has seen it."""
        if step.kind is Kind.SEND:
            goes_through = self.policy.receive(step.ids[0], received_at_us=step.number).deliver
        elif step.kind is Kind.COMMIT:
            goes_through = self.policy.receive_transaction(step.ids) is not Verdict.DUPLICATE
        else:
            goes_through = False
        self._accepted.extend(step.ids if goes_through else ())
        return goes_through

    def ring(self):
        """Sends of all ids that can be held, newest first. A send of an id that is held changes nothing, so every id
        is tried."""
        ids = list(reversed(self._accepted))[: self.size + ALREADY_GONE]
        return [Step(next(self._numbers), Kind.SEND, [id_]) for id_ in ids]

    def resume(self, session):
        """Go on after a restart, by the sends under way that have arrived. Returns their number."""
        sent = {body for step in self.under_way for body in step.bodies}
        arrived = [body for body in session.arrived() if body in sent]
        expected = []
        # The broker may have lost the last ones, but no other. Those that it dropped leave no trace.
        for step in self.under_way:
            if expected == arrived:
                break
            expected += step.bodies if self.lets_through(step) else []
        assert arrived == expected, f"{self.name}: {self.policy}"
        self.policy = self.policy.restarted(self.size)
        if self.under_way:
            # A broker deletes the id that it overwrites before it commits the new one. If it is killed in between, it
            # lacks its oldest id. Then a new id fills the empty slot; in the policy it overwrites the oldest.
            number = next(self._numbers)
            new = Step(number, Kind.SEND, [f"new:{number}"])
            assert session.let_through([new]) == [self.lets_through(new)] == [True]
        self.under_way = []
        return len(arrived)


def agree(address, session, counts):
    """The broker lets through exactly the steps that the policy accepts."""
    judged = [(step, address.lets_through(step)) for step in address.ring()]
    for _ in range(STEPS):
        step = address.step()
        judged.append((step, address.lets_through(step)))
    steps = [step for step, _ in judged]
    assert list(zip(steps, session.let_through(steps), strict=True)) == judged, f"{address.name}: {address.policy}"
    for step, goes_through in judged:
        counts[step.kind.value] += 1
        counts["messages"] += len(step.ids)
        counts["verdicts"] += step.kind in (Kind.SEND, Kind.COMMIT)
        counts["with a duplicate"] += step.kind in (Kind.SEND, Kind.COMMIT) and not goes_through
        counts["accepted with equal ids inside"] += goes_through and len(set(step.ids)) < len(step.ids)


def end(broker, ending, addresses, draw):
    """End the broker's life, perhaps while it receives."""
    if ending == KILL_UNDER_WAY:
        for address in draw.sample(addresses, ADDRESSES_UNDER_WAY):
            address.under_way = [address.step(Kind.SEND) for _ in range(SENDS_UNDER_WAY)]
            session = Session(broker, address.name)
            for step in address.under_way:
                session.take(step)
        time.sleep(draw.uniform(0, HANDLED_WITHIN_SECS))
    if ending == STOP:
        broker.stop()
    else:
        broker.kill()


@pytest.mark.scaled
def test_the_broker_and_the_policy_agree(artemis, lives, seed):
    draw, numbers, counts = random.Random(seed), count(), Counter()
    addresses = [Address(f"differential.{size}", size, draw, numbers) for size in SIZES]
    endings = [ENDINGS[life % len(ENDINGS)] for life in range(lives)]
    draw.shuffle(endings)
    for ending in endings:
        artemis.start({address.name: address.size for address in addresses})
        for address in addresses:
            session = Session(artemis, address.name)
            counts["sends under way"] += len(address.under_way)
            counts["of those arrived"] += address.resume(session)
            agree(address, session, counts)
            session.close()
        end(artemis, ending, addresses, draw)
        counts[ending] += 1
        for address in addresses:
            size = draw.choice([address.size, draw.choice(SIZES)])
            if not address.under_way:
                counts["changed sizes"] += size != address.size
                address.size = size
    print("\n".join(f"{number:>8,} {what}" for what, number in counts.items()))
    survived({ending: counts[ending] for ending in ENDINGS if ending != STOP}, counts["of those arrived"])
