"""What a command is to look after, named as the command's list shows it: by its number or its exact name."""

from __future__ import annotations

from collections.abc import Mapping

from receiver.errors import SettingsError

__all__ = ["chosen"]


def chosen(given: str, names: Mapping[int, str], kind: str, listed_by: str) -> int:
    """The number of the one that has this number or this name.

    `SettingsError` if none has or several have, which says what shows numbers and names.
    """
    meant = [number for number, name in names.items() if given in {str(number), name}]
    if not meant:
        raise SettingsError(f"there is no {kind} {given!r:.200}", hint=f"{listed_by} shows those that there are")
    if len(meant) > 1:
        numbers = ", ".join(map(str, meant))
        raise SettingsError(
            f"several are called {given!r:.200}: {numbers}",
            hint=f"{listed_by} shows numbers and names: choose one that is its own",
        )
    return meant[0]
