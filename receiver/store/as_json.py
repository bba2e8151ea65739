"""What a message says of itself as JSON, all of it ASCII, so that any text is stored as it was; bytes are in base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["base64_of", "dumped", "loaded"]


def base64_of(value: bytes) -> str:
    return base64.b64encode(value).decode()


_encode = json.JSONEncoder(separators=(",", ":"), default=lambda value: {"base64": base64_of(value)}).encode


def dumped(values: Mapping[str, Any]) -> str:
    return _encode(dict(values)) if values else "{}"


def loaded(text: str) -> dict[str, Any]:
    """What was dumped."""
    return {name: _read(value) for name, value in json.loads(text).items()} if text != "{}" else {}


def _read(value: Any) -> Any:
    return base64.b64decode(value["base64"], validate=True) if isinstance(value, dict) else value
