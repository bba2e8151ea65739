"""The messages in a bridge's target, counted one by one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

__all__ = ["Effects"]


class Effects(NamedTuple):
    lines: int
    missing: int
    """Ids that should be there, and aren't."""
    double: int
    """Lines of an id that another line has already."""

    @classmethod
    def in_file(cls, path: Path, expected: Collection[str]) -> Effects:
        """Those in a file of JSON Lines, of which there should be one for each expected id."""
        found: Counter[str] = Counter()
        if path.exists():
            with path.open("rb") as file:
                found.update(json.loads(line)["unique_message_id"] for line in file)
        missing = sum(id_ not in found for id_ in expected)
        return cls(found.total(), missing, found.total() - len(found))
