"""Hides the credentials in addresses that are shown. A password may have any letter, an @ and a / too."""

from __future__ import annotations

import re

_BEFORE_LAST_AT = re.compile(r"\A([\w+]+:/+)?.*@", re.DOTALL)
_PASSWORD_OPTION = re.compile(r"(pass[^=&?/]*=)[^&]*", re.IGNORECASE)
_USER_OF_URL = re.compile(r"(?<=://)[^:/?]*(:.*)?@", re.DOTALL)
_QUERY_OF_HTTP = re.compile(r"\?.*", re.DOTALL)
_QUERY = re.compile(r"\?(?=[^/]*=).*", re.DOTALL)
_PASSWORD_IN_TEXT = re.compile(r"(?<=://)([^\s:/@]*):\S*@")


def masked(address: object) -> str:
    """The address of a broker or a store, or what was meant as one, with `***` for all before its last @, except the protocol,
    and for options that are passwords."""
    return _PASSWORD_OPTION.sub(r"\1***", _BEFORE_LAST_AT.sub(r"\1***@", str(address)))


def masked_log(url: str) -> str:
    """A log's URL with `***` for user and password, and for what follows a `?`, which may be a signature.

    The path may have an @ too, and a `?` that stands for any letter. A text without a URL stays as it is.
    """
    if "://" not in url:
        return url
    query = _QUERY_OF_HTTP if url.startswith("http") else _QUERY
    return query.sub("?***", _USER_OF_URL.sub("***@", url))


def masked_text(text: str) -> str:
    """A text in which each URL has `***` for its password."""
    return _PASSWORD_IN_TEXT.sub(r"\1:***@", text)
