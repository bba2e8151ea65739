"""One self-contained HTML file: it makes no network requests and runs only its own scripts."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from receiver.report import charts
from receiver.report.document import Chart, Document, Only
from receiver.report.words import reading, remarks, sanitised

_LONGEST_PROVENANCE = 2_000


def page_text(document: Document, provenance: str = "") -> str:
    """The whole HTML file. `provenance` is the text at its foot on what made it."""
    blocks = [block for block in document.blocks if block.only is not Only.TERMINAL]
    contents = {id_: [block.content for block in blocks if block.section == id_] for id_ in document.sections}
    drawn = [content for block in blocks if isinstance(content := block.content, Chart)]
    scripts = [_vega(), _for_script_element(_packaged("draw.js"))]
    environment = Environment(
        loader=PackageLoader("receiver", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - our own
        script_hashes=[_csp_hash(script) for script in scripts],
        style=Markup(_packaged("report.css")),  # noqa: S704 - our own
        drawing={
            "config": charts.CONFIG,
            "charts": {chart.id: {**chart.draw(charts), "description": chart.title} for chart in drawn},
        },
        document=document,
        sections=[(id_, title, contents[id_]) for id_, title in document.sections.items() if contents[id_]],
        reading=reading(document.log),
        remarks=remarks(document.log, document.key),
        provenance=sanitised(provenance, _LONGEST_PROVENANCE),
    )


def _packaged(name: str) -> str:
    return resources.files("receiver.report").joinpath(name).read_text(encoding="utf-8")


def _for_script_element(javascript: str) -> str:
    # These two texts end a script element or change its state. In JavaScript they only occur in literals.
    return re.sub("<(?=/script|!--)", r"\\x3c", javascript, flags=re.IGNORECASE).replace("\r\n", "\n")


# The only function that the bundle exposes to the other script.
_VEGA_FACE = "window.vegaEmbed = vegaEmbed;"


@cache
def _vega() -> str:
    return _for_script_element(vl_convert.javascript_bundle(_VEGA_FACE))


def _csp_hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
