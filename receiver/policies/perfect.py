"""The yardstick: every id for ever."""

from __future__ import annotations

from receiver.policies.firsts import Entry, FirstReceipts

__all__ = ["Perfect"]


class Perfect(FirstReceipts):
    """Never forgets, so it misses nothing and calls nothing wrongly a duplicate; its memory grows without bound."""

    name = kind = "perfect"

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, Entry] = {}

    def __str__(self) -> str:
        return self.name

    @property
    def remembered_ids(self) -> int:
        return len(self._kept)

    def _found(self, id_: str) -> Entry | None:
        return self._kept.get(id_)

    def _remember(self, id_: str, now_us: int, mark: int | None) -> None:
        del mark
        self._kept[id_] = self.serial, now_us

    def entries(self) -> list[int]:
        return [serial for serial, _ in self._kept.values()]
