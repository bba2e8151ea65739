"""What is closed as its `with` block is left, and a folder whose names the disk is to keep."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

__all__ = ["Closing", "sync_folder"]


class Closing(ABC):
    """Closes as its `with` block is left; for whoever likes to inherit that."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def sync_folder(folder: Path) -> None:
    """Have the disk keep the names of the files in it. On Windows, where no folder can be synced, nothing is done."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
