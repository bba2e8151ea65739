"""One HTML file that explains itself, asks nothing of the network, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from receiver.report.charts import CONFIG, Spec
from receiver.report.words import reading, remarks
from receiver.simulate.figures import LogFigures

__all__ = ["Figure", "Numbers", "page_text"]


@dataclass(frozen=True, slots=True)
class Numbers:
    """A table: its caption, the names of its columns, its rows. The first `texts` columns are text, the others figures."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 0
    marked: frozenset[int] = frozenset()
    """The indices of the rows that stand out."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its words, and the numbers behind it where they are few."""

    id: str
    title: str
    caption: str
    spec: Spec
    numbers: Numbers | None = None
    least_width_em: int = 0
    """Below this width it scrolls."""


def page_text(
    command: str, log: LogFigures, key: str, *, figures: Sequence[Figure], curves: Sequence[Figure] = (), **words: Any
) -> str:
    """The whole HTML file: the command's template, filled with the log's figures, its domain KEY, the charts and the words.

    The `curves` stand with the answers, the `figures` below them.
    """
    scripts = [_vega(), _script_text("draw.js")]
    environment = Environment(
        loader=PackageLoader("receiver", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{command}.html.j2").render(
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - our own
        script_hashes=[_csp_hash(script) for script in scripts],
        style=Markup(_packaged("report.css")),  # noqa: S704 - our own
        drawing={
            "config": CONFIG,
            "charts": {figure.id: {**figure.spec, "description": figure.title} for figure in (*curves, *figures)},
        },
        command=command,
        reading=reading(log),
        remarks=remarks(log, key),
        figures=figures,
        curves=curves,
        **words,
    )


def _packaged(name: str) -> str:
    return resources.files("receiver.report").joinpath(name).read_text(encoding="utf-8")


def _script_text(name: str) -> str:
    return _for_script_element(_packaged(name))


def _for_script_element(javascript: str) -> str:
    # The two texts that end or change the state of a script element; both can stand in literals only.
    return re.sub("<(?=/script|!--)", r"\\x3c", javascript, flags=re.IGNORECASE).replace("\r\n", "\n")


# What the bundle shows to the other script: all that it exposes is this one function.
_VEGA_FACE = "window.vegaEmbed = vegaEmbed;"


@cache
def _vega() -> str:
    return _for_script_element(vl_convert.javascript_bundle(_VEGA_FACE))


def _csp_hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
