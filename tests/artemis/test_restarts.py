"""What a restart does to ids, case by case. Each case is worked by hand, and compared with the policy and with a
real broker."""

from itertools import count

import pytest

from receiver.message import Verdict
from receiver.policies.artemis import ArtemisIdCache
from tests.artemis.sending import Kind, Session, Step

# For each life of the broker: the size of the ring, then the sends and whether each is let through. "a b" is one
# transaction, "a" a send on its own.
SCENARIOS = {
    "the ring is kept": [
        (3, [("a", True), ("b", True), ("c", True), ("d", True)]),
        (3, [("b", False), ("c", False), ("d", False), ("a", True), ("b", True)]),
    ],
    "a dead slot stays dead while the broker runs": [
        (3, [("a a b", True), ("c", True), ("a", True)]),
    ],
    "a restart brings a dead slot to life": [
        (3, [("a a b", True), ("c", True)]),
        (3, [("a", False), ("d", True), ("a", True)]),
    ],
    "of twin slots both come back, and either takes the id out": [
        (3, [("a b a", True)]),
        (3, [("a", False), ("c", True), ("a", True)]),
    ],
    "an id that overwrites itself is forgotten, and a restart brings it to life": [
        (1, [("a", True), ("b b", True), ("b", True), ("b", True)]),
        (1, [("b", False), ("a", True)]),
    ],
    "a smaller ring keeps the newest": [
        (3, [("a", True), ("b", True), ("c", True)]),
        (2, [("b", False), ("c", False), ("a", True), ("b", True)]),
        (3, [("a", False), ("b", False), ("c", True)]),
    ],
    "an id whose older slot falls to a smaller ring stays": [
        (3, [("a b a", True)]),
        (2, [("b", False), ("a", False)]),
    ],
    "a larger ring has room behind the newest": [
        (2, [("a", True), ("b", True)]),
        (3, [("c", True), ("a", False), ("d", True), ("b", False), ("a", True)]),
    ],
    "ids sleep while a size of 0 switches detection off": [
        (3, [("a", True), ("b", True), ("c", True)]),
        (0, [("a", True), ("d", True), ("d", True)]),
        (2, [("c", False), ("b", False), ("d", True), ("a", True)]),
    ],
    "ids aren't shared by addresses, not even after a restart": [
        (3, [("z", True)]),
        (3, [("a", True)]),
    ],
}
ADDRESSES = {name: f"restarts.{number}" for number, name in enumerate(SCENARIOS)}


def by_policy(lives):
    cache = ArtemisIdCache(lives[0][0])
    for size, sent in lives:
        cache = cache.restarted(size)
        yield [
            (ids, cache.receive_transaction(ids.split()) is not Verdict.DUPLICATE)
            if " " in ids
            else (ids, cache.receive(ids, received_at_us=0).deliver)
            for ids, _ in sent
        ]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_policy_says_so(name):
    lives = SCENARIOS[name]
    assert list(by_policy(lives)) == [sent for _, sent in lives]


@pytest.mark.artemis
@pytest.mark.slow
def test_the_broker_says_so(artemis):
    """All scenarios run side by side, since starting takes seconds."""
    numbers = count()
    for life, end in enumerate([artemis.stop, artemis.kill, artemis.stop]):
        living = {ADDRESSES[name]: lives[life] for name, lives in SCENARIOS.items() if life < len(lives)}
        artemis.start({address: size for address, (size, _) in living.items()})
        for address, (_, sent) in living.items():
            session = Session(artemis, address)
            steps = [Step(next(numbers), Kind.COMMIT if " " in ids else Kind.SEND, ids.split()) for ids, _ in sent]
            said = session.let_through(steps)
            assert list(zip([ids for ids, _ in sent], said, strict=True)) == sent, address
            session.close()
        end()
