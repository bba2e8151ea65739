"""How values are stored that no database takes as they are: text as bytes, objects as JSON.

Ids and names are bytes: UTF-8 in which a lone surrogate stands as it is. Two ids must never become one, but PostgreSQL's
text can't hold U+0000, nor can either database's hold lone surrogates.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["base64_of", "dumped", "encoded", "loaded", "printable", "revived", "text_of", "to_bytes"]


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def text_of(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")


def printable(stored: bytes) -> str:
    """For people, also where a damaged store holds what is no text."""
    try:
        return text_of(stored)
    except UnicodeDecodeError:
        return stored.decode(errors="backslashreplace")


def base64_of(value: bytes) -> str:
    return base64.b64encode(value).decode()


encoded = json.JSONEncoder(separators=(",", ":"), default=lambda value: {"base64": base64_of(value)}).encode
"""As JSON, all of it ASCII; bytes are in base64."""


def dumped(values: Mapping[str, Any]) -> str:
    """As JSON, all of it ASCII, so that any text is stored as it was."""
    if not values:
        return "{}"
    if {str}.issuperset(map(type, values.values())):  # as most have it, in half the time
        return "{" + ",".join([f"{encoded(name)}:{encoded(value)}" for name, value in values.items()]) + "}"
    return encoded(dict(values))


def loaded(text: str) -> dict[str, Any]:
    """The values that were dumped."""
    return revived(json.loads(text)) if text != "{}" else {}


def revived(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that JSON was made of, bytes among them."""
    return {name: _read(value) for name, value in values.items()}


def _read(value: Any) -> Any:
    return base64.b64decode(value["base64"], validate=True) if isinstance(value, dict) else value
