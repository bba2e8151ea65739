"""The analysis as one HTML file that explains itself, asks nothing of the network, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from receiver.report.charts import CONFIG
from receiver.report.sections import LONGEST_PARAGRAPH, figures_of, tables_of
from receiver.report.words import (
    count,
    headroom_left,
    of_duplicates,
    reading,
    remarks,
    seconds,
    setting_asked_for,
    size,
    tamed,
    without_recommendation,
)
from receiver.simulate.figures import Analysis

__all__ = ["html_text"]


def html_text(analysis: Analysis) -> str:
    """The whole file. Its size depends little on the grid and the number of domains: both are cut, and the page says so."""
    figures = figures_of(analysis)
    scripts = [_vega(), _script_text("draw.js")]
    environment = Environment(
        loader=PackageLoader("receiver", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("template.html.j2").render(
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - our own
        script_hashes=[_csp_hash(script) for script in scripts],
        style=Markup(_packaged("report.css")),  # noqa: S704 - our own
        drawing={
            "config": CONFIG,
            "charts": {figure.id: {**figure.spec, "description": figure.title} for figure in figures},
        },
        reading=reading(analysis),
        remarks=remarks(analysis),
        asked=setting_asked_for(analysis),
        answer=_answer(analysis),
        findings=[tamed(finding.text, LONGEST_PARAGRAPH) for finding in analysis.findings],
        figures=figures,
        tables=tables_of(analysis),
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


def _answer(analysis: Analysis) -> dict[str, Any]:
    recommendation = analysis.recommendation
    if recommendation is None:
        return {"found": False, "why": without_recommendation(analysis)}
    setting = recommendation.setting
    return {
        "found": True,
        "window": count(setting.window),
        "expiry": seconds(setting.expiry_us),
        "settings": {
            "dupDetectionPerSourceExpiryWindowSize": str(setting.window),
            "dupDetectionExpiryTimeSecs": seconds(setting.expiry_us).removesuffix(" s").replace(",", ""),
        },
        "missed": of_duplicates(setting.missed, analysis.log.duplicates),
        "missed_none": not setting.missed,
        "ids": count(setting.peak_ids),
        "memory": size(recommendation.memory_bytes),
        "database": size(recommendation.database_bytes),
        "margin": f"{recommendation.margin:g}",
        "why": tamed(recommendation.why, LONGEST_PARAGRAPH),
        "headroom": headroom_left(analysis),
    }
