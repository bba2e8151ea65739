"""Every policy at small sizes with its model, and steps for it; for tests that all policies must pass."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from receiver.message import Decision
from receiver.policies import policy
from receiver.quantities import exact_secs
from tests.policies.models import Answer, Firsts, Last, LatestUsed, MinimumTime, Ring, Sequence, TimeToLive, TwoTier

Step = tuple[Any, ...]
"""A kind of step, and its arguments: `("receive", id, source, step_us, sent_ms)`, `("advance", ms)`,
`("transaction", ids)`, `("together", receipts)`, `("restart", size)`."""

WORDS = [*"abcdefgh"]
COUNTED = [f"{number}:{source}" for number in ["0", "1", "2", "3", "03", "10"] for source in ["", "s", "s:t"]]
ORIGINS = ["0d77c-b0b2e66aece", "0d77c-b0b2e66aecf", "1d77c-b0b2e66aece"]
NUMBERS = ["00000000-00000001", "00000000-0000000a", "00000000-0000000B", "00000001-00000000", "Ffffffff-ffffffff"]
LABELLED = [f"rmid1:{origin}-{number}" for origin in ORIGINS for number in NUMBERS]
SOURCES = st.sampled_from([None, "", "s", "t"])
STEPS_US = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 7, -1, -5])
SENT_MS = st.one_of(st.none(), st.integers(0, 25))


@dataclass(frozen=True)
class Kind:
    """A kind of policy: its sizes, its text, its model, and ids that it can judge."""

    name: str
    sizes: st.SearchStrategy[tuple[int, ...]]
    text: Callable[..., str]
    model: Callable[..., Any]
    ids: list[str]
    roomy: tuple[int, ...] = ()
    """Sizes that forget nothing in a short test."""
    us_per_step: int = 1

    def receipts(self, ids: list[str] | None = None) -> st.SearchStrategy[Step]:
        return st.tuples(
            st.just("receive"),
            st.sampled_from(ids or [None, "", *self.ids, *self.ids]),
            SOURCES,
            STEPS_US.map(lambda us: us * self.us_per_step),
            SENT_MS if self.name == "cmq-minimum" else st.none(),
        )

    def steps(self, *, stored: bool) -> st.SearchStrategy[Step]:
        kinds = [self.receipts()]
        if self.name == "cmq-minimum":
            kinds = [self.receipts(), self.receipts(), st.tuples(st.just("advance"), st.integers(0, 40))]
        if self.name == "artemis":
            # Often with the same id several times, which only transactions can have.
            together = st.lists(st.one_of(self.receipts(), self.receipts(self.ids[:2])), max_size=4)
            kinds += [st.tuples(st.just("together"), together)]
            if not stored:
                few = st.lists(st.sampled_from([None, *self.ids[:3]]), max_size=4)
                kinds += [st.tuples(st.just("transaction"), few), st.tuples(st.just("restart"), st.integers(0, 6))]
        return st.one_of(kinds)

    def many_steps(self, most: int = 60, *, stored: bool = False) -> st.SearchStrategy[list[Step]]:
        """Lists of steps that Hypothesis doesn't keep short by itself. With `stored`, only steps that a durable
        receiver takes too."""
        steps = self.steps(stored=stored)
        return st.integers(1, most).flatmap(lambda count: st.lists(steps, min_size=count, max_size=count))


NOTHING = st.just(())
KINDS = [
    Kind(
        "apama",
        st.tuples(st.integers(0, 6), st.integers(0, 12)).filter(any),
        lambda window, us: f"apama:window={window},expiry={exact_secs(us)}",
        TwoTier,
        WORDS,
        (99, 99),
    ),
    Kind(
        "artemis",
        st.tuples(st.integers(0, 6)),
        lambda size: f"artemis:id_cache_size={size}",
        lambda size: Ring(size=size),
        WORDS,
        (99,),
    ),
    Kind("lru", st.tuples(st.integers(1, 6)), "lru:size={}".format, lambda size: LatestUsed(size=size), WORDS, (99,)),
    Kind("solace-lookup", NOTHING, lambda: "solace-lookup", Firsts, WORDS),
    Kind("solace-last", NOTHING, lambda: "solace-last", Last, LABELLED),
    Kind(
        "cmq",
        st.tuples(*[st.integers(0, 4)] * 3),
        lambda *us: "cmq:retention={},retry={},network={}".format(*map(exact_secs, us)),
        lambda *us: TimeToLive(expiry_us=sum(us)),
        WORDS,
        (33, 33, 33),
    ),
    Kind(
        "cmq-minimum",
        st.tuples(*[st.integers(0, 6).map(lambda ms: ms * 1_000)] * 2),
        lambda *us: "cmq:retry={},network={}".format(*map(exact_secs, us)),
        lambda *us: MinimumTime(limit_us=sum(us)),
        WORDS,
        (99_000, 99_000),
        us_per_step=1_000,
    ),
    Kind(
        "ttl",
        st.tuples(st.integers(0, 12)),
        lambda us: f"ttl:expiry={exact_secs(us)}",
        lambda us: TimeToLive(expiry_us=us),
        WORDS,
        (99,),
    ),
    Kind("sequence", NOTHING, lambda: "sequence", Sequence, COUNTED),
    Kind("perfect", NOTHING, lambda: "perfect", Firsts, WORDS),
]


def answer_of(decision: Decision) -> Answer:
    return Answer(*(getattr(decision, name) for name in Answer._fields))


class Lockstep:
    """Gives each step to a policy and its model, and compares everything that is visible from outside.

    `others` are further policies. They must give the same answers, whatever is done to them in between.
    """

    def __init__(self, kind: Kind, sizes: tuple[int, ...]) -> None:
        self.kind = kind
        self.policy = policy(kind.text(*sizes))
        self.model = kind.model(*sizes)
        self.others: list[Any] = []
        self.now_us = 0

    def do(self, step: Step) -> list[Decision]:
        """Do a step. Returns the decisions on its receipts."""
        decided = getattr(self, f"_{step[0]}")(*step[1:]) or []
        self._compare_with_model()
        for other in self.others:
            self.compare(other)
        return decided

    def _receive(self, id_: str | None, source: str | None, step_us: int, sent_ms: int | None) -> list[Decision]:
        self.now_us = max(0, self.now_us + step_us)
        arguments: dict[str, int] = {"received_at_us": self.now_us}
        if sent_ms is not None:
            arguments["jms_timestamp_ms"] = sent_ms
        decision = self.policy.receive(id_, source, **arguments)
        assert answer_of(decision) == self.model.receive(id_, source, self.now_us, sent_ms)
        assert decision.tier is None or self.kind.name == "apama"
        assert [other.receive(id_, source, **arguments) for other in self.others] == [decision] * len(self.others)
        return [decision]

    def _advance(self, ms: int) -> None:
        for each in self._policies():
            each.advance(min_msg_time_us=ms * 1_000)
        self.model.advance(ms * 1_000)

    def _transaction(self, ids: list[str | None]) -> None:
        verdict = self.model.transaction(ids)
        assert {each.receive_transaction(ids) for each in self._policies()} == {verdict}

    def _together(self, receipts: list[Step]) -> list[Decision]:
        for each in self._policies():
            each.begin_transaction()
        self.model.begin()
        decided = [self._receive(*receipt[1:])[0] for receipt in receipts]
        for each in self._policies():
            each.commit_transaction()
        self.model.commit()
        return decided

    def _restart(self, size: int) -> None:
        self.policy = self.policy.restarted(size)
        self.model = self.model.restarted(size)

    def _policies(self) -> list[Any]:
        return [self.policy, *self.others]

    def _compare_with_model(self) -> None:
        ours, model = self.policy, self.model
        assert ours.remembered_ids == model.remembered_ids()
        assert ours.peak_ids == model.peak_ids
        assert ours.entries() == model.numbers()
        assert [id_ in ours for id_ in self.kind.ids] == [model.match(id_) is not None for id_ in self.kind.ids]
        assert (ours.latest_us, ours.clock_clamped, ours.serial) == (model.latest_us, model.clock_clamped, model.serial)

    def compare(self, other: Any) -> None:
        """Compare everything on which later verdicts can depend."""
        ours = self.policy
        assert other.entries() == ours.entries()
        assert other.peak_ids >= other.remembered_ids == ours.remembered_ids
        assert [id_ in other for id_ in self.kind.ids] == [id_ in ours for id_ in self.kind.ids]
        assert (other.serial, other.latest_us, other.clock_us) == (ours.serial, ours.latest_us, ours.clock_us)
