"""What a command is to look after, named as the command's list shows it: by its number or its exact name."""

from __future__ import annotations

from collections.abc import Mapping

from receiver.errors import SettingsError

__all__ = ["chosen"]


def chosen(given: str, names: Mapping[int, str], kind: str, listed_by: str) -> int:
    """The number of what is meant: digits alone are a number, anything else is a name that only one of them has.

    `SettingsError` otherwise, which says what shows the numbers.
    """
    meant = [number for number, name in names.items() if (number == int(given) if given.isdecimal() else name == given)]
    if not meant:
        raise SettingsError(f"there is no {kind} {given!r:.200}", hint=f"{listed_by} shows those that there are")
    if len(meant) > 1:
        numbers = ", ".join(map(str, meant))
        raise SettingsError(f"several are called {given!r:.200}: {numbers}", hint=f"name it by its number: {listed_by}")
    return meant[0]
