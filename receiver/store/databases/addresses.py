"""Addresses of stores as they may be shown, and the refusal of those that are none."""

from __future__ import annotations

import re

from sqlalchemy import URL, make_url

from receiver.errors import SettingsError

__all__ = ["ADDRESSES", "masked", "refused", "shown"]

ADDRESSES = "sqlite:///FILE or postgresql://USER@HOST/DATABASE; memory:// is for a receiver that keeps nothing"
"""Those that there are, as a hint."""
_CREDENTIALS = re.compile(r"\A([\w+]+:/+)?.*@|(password=)[^&]*", re.DOTALL)
_SECRETS = ("password", "sslpassword")


def shown(address: str | URL) -> str:
    """An address as it may be shown: without its passwords."""
    return make_url(address).difference_update_query(_SECRETS).render_as_string(hide_password=True)


def masked(address: object) -> str:
    """As `shown`, of what may not even be an address, and still hold a password."""
    return _CREDENTIALS.sub(lambda found: f"{found[2]}***" if found[2] else f"{found[1] or ''}***@", str(address))


def refused(address: object, problem: str) -> SettingsError:
    return SettingsError(f"{masked(address)!r:.200} {problem}", hint=ADDRESSES)
