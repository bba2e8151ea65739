"""How values are stored that no database takes as they are: text as bytes, objects as JSON.

Ids and names are bytes: UTF-8 in which a lone surrogate stands as it is. Two ids must never become one, but PostgreSQL's
text can't hold U+0000, nor can either database's hold lone surrogates.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def text_of(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")


def printable(stored: bytes) -> str:
    """The text for people to read, even if a damaged store holds none."""
    try:
        return text_of(stored)
    except UnicodeDecodeError:
        return stored.decode(errors="backslashreplace")


def base64_of(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _in_base64(value: bytes) -> dict[str, str]:
    return {"base64": base64_of(value)}


encoded = json.JSONEncoder(separators=(",", ":"), default=_in_base64).encode
"""As JSON, all of it ASCII; bytes are in base64."""
_encoded_as_it_is = json.JSONEncoder(separators=(",", ":"), default=_in_base64, ensure_ascii=False).encode


def exactly(value: Any) -> bytes:
    """As JSON in UTF-8. Not in ASCII, which spells a character and the two surrogates of its UTF-16 form alike."""
    return to_bytes(_encoded_as_it_is(value))


def dumped(values: Mapping[str, Any]) -> str:
    """As JSON, all of it ASCII, so that any text is stored as it was."""
    if not values:
        return "{}"
    if {str}.issuperset(map(type, values.values())):  # what `encoded` gives, in half the time; most values are texts
        return "{" + ",".join([f"{encoded(name)}:{encoded(value)}" for name, value in values.items()]) + "}"
    return encoded(dict(values))


def loaded(text: str) -> dict[str, Any]:
    """The values that were dumped."""
    return revived(json.loads(text)) if text != "{}" else {}


def revived(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that JSON was made of, bytes among them."""
    return {
        name: base64.b64decode(value["base64"], validate=True) if isinstance(value, dict) else value
        for name, value in values.items()
    }
