"""Rows in a list: the plainest `RowFlow`. It does on purpose what a real flow does: it changes tasks and orders, and
uses Arrow."""

import random
from collections.abc import Iterable

from receiver.steps.arrow_rows import Row, batches_of, by_kind, rows_of


class PlainFlow:
    """A flow whose `steps` show what was kept or collected, in order. Flows made from one another share `steps`."""

    def __init__(self, rows: Iterable[Row], *, seed: int = 0, most_tasks: int = 3, steps=None) -> None:
        self.rows = list(rows)
        self.steps: list[str] = [] if steps is None else steps
        self._random = random.Random(seed)  # noqa: S311 - draws by seed
        self._most_tasks = most_tasks

    def _with(self, rows: Iterable[Row], *kinds: type) -> "PlainFlow":
        seed = self._random.randrange(2**32)
        if kinds:
            rows = rows_of(batches_of(rows, *kinds), *kinds)
        return PlainFlow(rows, seed=seed, most_tasks=self._most_tasks, steps=self.steps)

    def _shuffled(self) -> list[Row]:
        return self._random.sample(self.rows, len(self.rows))

    def map(self, work, *kinds: type) -> "PlainFlow":
        rows = self._shuffled()
        tasks = self._random.randint(1, self._most_tasks)
        return self._with([made for task in range(tasks) for made in work(iter(rows[task::tasks]))], *kinds)

    def dealt(self, keys: int) -> "PlainFlow":
        assert all(0 <= row.key < keys for row in self.rows)
        return self

    def each_key(self, work, *kinds: type) -> "PlainFlow":
        groups: dict[int, list[Row]] = {}
        for row in self._shuffled():
            groups.setdefault(row.key, []).append(row)
        return self._with([made for key, rows in groups.items() for made in work(key, iter(rows))], *kinds)

    def grouped(self, work, keys: int, *kinds: type) -> "PlainFlow":
        return self.dealt(keys).each_key(work, *kinds)

    def only(self, *kinds: type) -> "PlainFlow":
        return self._with([row for row in self.rows if isinstance(row.value, kinds) and type(row.value) in kinds])

    def plus(self, *others: "PlainFlow") -> "PlainFlow":
        return self._with([row for flow in (self, *others) for row in flow.rows])

    def kept(self, what: str, *counts: type):
        self.steps.append(what)
        return self, by_kind(self.only(*counts).collect(what), *counts)

    def collect(self, what: str) -> list:
        self.steps.append(what)
        return [row.value for row in self._shuffled()]

    def forget(self) -> None:
        pass
