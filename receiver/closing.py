"""What is closed as its `with` block is left, and a folder whose names the disk is to keep."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self


class Closing(ABC):
    """The base of whatever is closed as its `with` block is left."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def sync_folder(folder: Path) -> None:
    """Have the disk keep the names of the files in it: syncing a file doesn't keep its name."""
    if os.name == "nt":  # where no folder can be synced
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
