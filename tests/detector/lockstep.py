"""The detector and the naive model side by side."""

from receiver import TwoTierDetector
from receiver.message import Decision
from tests.model import Model


class Lockstep:
    """Gives each receipt to both, and compares everything that is visible from outside."""

    def __init__(self, window: int, expiry_us: int) -> None:
        self.detector = TwoTierDetector(window, expiry_us / 1_000_000)
        self.model = Model(window, expiry_us)
        self._last_us: dict[str, int] = {}  # the newest receipt of each id ever, even if its entry has left

    def receive(self, id_: str | None, source: str | None, received_at_us: int) -> Decision:
        expected = self._headroom(id_, received_at_us)
        verdict = self.model.receive(id_, source, received_at_us)
        decision = self.detector.receive(id_, source, received_at_us=received_at_us)
        assert decision.verdict == verdict
        assert (decision.tier, decision.age_us, decision.window_left, decision.expiry_left_us) == expected
        self.assert_equal_figures()
        if id_:
            self._last_us[id_] = self.model.latest_us
        return decision

    def retire(self, source: str | None) -> None:
        self.model.retire(source)
        self.detector.retire(source)
        self.assert_equal_figures()

    def _headroom(self, id_: str | None, received_at_us: int) -> tuple:
        if not id_ or id_ not in self.model.remembered():
            return None, None, None, None
        now_us = max(received_at_us, self.model.latest_us)
        age_us = now_us - self._last_us[id_]
        return self.model.tier(id_), age_us, self.model.window_left(id_), self.model.expiry_left_us(id_)

    def assert_equal_figures(self) -> None:
        assert self.detector.remembered_ids == len(self.model.remembered())
        assert self.detector.peak_ids == self.model.peak_ids
        assert self.detector.clock_clamped == self.model.clock_clamped
        queues = self.model.queues if self.model.window else {}
        assert self.detector.sources == len(queues)
        latest = sorted(queue[-1].number for queue in queues.values())
        by_number = {queue[-1].number: (queue[-1].received_at_us, source or None) for source, queue in queues.items()}
        assert self.detector.sources_by_silence() == [by_number[number] for number in latest]
