"""Parcels in a list: the plainest `Flow`, with what a real one does to them on purpose: other tasks, other orders."""

import random
from collections.abc import Iterable, Iterator

from receiver.chunks.parcels import Parcel


class PlainFlow:
    """`steps` tells what was kept or collected, in order; flows made of each other share it."""

    def __init__(self, parcels: Iterable[Parcel], *, seed: int = 0, most_tasks: int = 3, steps=None) -> None:
        self.parcels = list(parcels)
        self.steps: list[str] = [] if steps is None else steps
        self._random = random.Random(seed)  # noqa: S311 - draws by seed
        self._most_tasks = most_tasks

    def _with(self, parcels: Iterable[Parcel]) -> "PlainFlow":
        seed = self._random.randrange(2**32)
        return PlainFlow(parcels, seed=seed, most_tasks=self._most_tasks, steps=self.steps)

    def _shuffled(self) -> list[Parcel]:
        return self._random.sample(self.parcels, len(self.parcels))

    def map(self, work) -> "PlainFlow":
        parcels = self._shuffled()
        tasks = self._random.randint(1, self._most_tasks)
        return self._with([made for task in range(tasks) for made in work(iter(parcels[task::tasks]))])

    def grouped(self, work, keys: int) -> "PlainFlow":
        groups: dict[int, list[Parcel]] = {}
        for parcel in self._shuffled():
            assert 0 <= parcel.key < keys
            groups.setdefault(parcel.key, []).append(parcel)
        return self._with([made for key, parcels in groups.items() for made in work(key, iter(parcels))])

    def only(self, *kinds: str) -> "PlainFlow":
        return self._with([parcel for parcel in self.parcels if parcel.kind in kinds])

    def plus(self, *others: "PlainFlow") -> "PlainFlow":
        return self._with([parcel for flow in (self, *others) for parcel in flow.parcels])

    def kept(self, what: str) -> "PlainFlow":
        self.steps.append(what)
        return self

    def collect(self, what: str) -> list[Parcel]:
        self.steps.append(what)
        return self._shuffled()

    def in_order(self, what: str) -> Iterator[Parcel]:
        self.steps.append(what)
        return iter(sorted(self.parcels, key=lambda parcel: parcel.key))

    def forget(self) -> None:
        pass
