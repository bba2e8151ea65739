"""The report of `receiver simulate`: what to set, why, what it costs, and what to know about the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from receiver.quantities import count, duration, seconds, three_digits
from receiver.report import advice, elsewhere, words
from receiver.report.document import MARK, Cells, Chart, Column, Document, Items, Lead, Only, Style, Table, Text, blocks
from receiver.simulate.figures import Analysis, DomainFigures, Grade, Kind, SettingFigures
from receiver.simulate.findings import DOUBTS

T = TypeVar("T")

_SECTIONS = {
    "answer": "What should I set?",
    "believe": "Why believe it?",
    "cost": "What does it cost?",
    "present": "What would my present setting have done?",
    "price": "What sets the price?",
    "findings": "What to know about this log",
    "missed": "",
    "time": "",
    "sources": "",
    "systems": "",
    "domains": "",
}
_GRADES = {
    Grade.STRONG: "Many disturbances, and each half of the log predicts the other.",
    Grade.FAIR: "Enough disturbances to go by, and each half of the log predicts the other.",
    Grade.WEAK: "Too few disturbances, or halves of the log that don't predict each other: W and E may need more than it shows.",
}
_WINDOW = "how many of its newest ids each source keeps"
_EXPIRY = (
    "an id pushed out of W is kept until one that came more than E later is pushed out too; time alone forgets nothing"
)
_WORDS = {
    "missed": "a duplicate that the setting would have let through as new, because it had forgotten the id",
    "missed unseen": "chosen by one half of the log, missed in the other half; both ways, added up",
    "window W": _WINDOW,
    "expiry E": _EXPIRY,
    "memory, database": "what this package takes for the ids; a correlator's memory is its own",
}
_MOST_GRID_LINES = 40
_MOST_CELLS_AS_TABLE = 400
_MOST_FRONTIER_ROWS = 20
_MOST_NUMBERED_COLUMNS = 20
_MOST_SOURCES = 10
_MOST_STEPS = 20
_NAMES = {kind: str(kind) for kind in Kind} | {Kind.PRESENT: "yours"}


def analysis_document(
    analysis: Analysis, *, allowed_missed: int | None = None, present_is_named: bool = False
) -> Document:
    """The report of an analysis. It shows a limited number of settings and domains, and says how many it leaves out.

    `allowed_missed`: the value of `--fail-on-missed`, if given. `present_is_named`: whether `--current` was given.
    """
    recommendation, grade, log = analysis.recommendation, analysis.evidence.grade, analysis.log
    meaning = recommendation.sized.kind.meaning
    is_guessed = advice.present_is_default(analysis) and not present_is_named
    compare = "Is something else set today? Name it: --current W,E." if is_guessed else ""
    answer = advice.answer(analysis, allowed_missed)
    doubts, findings = _findings(analysis)
    shown = [
        *blocks("answer", *map(Lead, answer[:1]), *answer[1:]),
        *blocks("answer", Lead(advice.decision(analysis)), Items("", doubts) if doubts else None),
        *blocks("answer", recommendation.risk, Text(advice.supported(analysis), grade=grade)),
        *blocks("answer", f"{_GRADES[grade]} {meaning[0].upper()}{meaning[1:]}.", only=Only.PAGE),
        *blocks("answer", *advice.guarantees(analysis)),
        *blocks("believe", advice.weakness(analysis), *advice.reasons(analysis)),
        *blocks("believe", *_curves(analysis), only=Only.PAGE),
        *blocks("cost", advice.cost(analysis)),
        *blocks("", Text(words.reading(log), Style.PLAIN), only=Only.TERMINAL),
        *blocks("cost", _kinds(analysis)),
        *blocks("present", advice.change(analysis), compare, advice.shortfall(analysis)),
        *blocks("present", _changes(analysis), only=Only.PAGE),
        *blocks("answer", "In Apama's receiver bean:", Text("\n".join(advice.properties(analysis)), Style.CODE)),
        *blocks("missed", _grid_chart(analysis) if analysis.settings else None),
        *blocks("findings", Items(_SECTIONS["findings"], findings) if findings else None),
        *blocks("price", advice.price_setters(analysis), _headroom_left(analysis), only=Only.PAGE),
        *blocks("sources", _sources(analysis) if analysis.sources else None),
        *blocks("systems", *elsewhere.contents(analysis)),
        *blocks("systems", elsewhere.by_domain(analysis), only=Only.PAGE),
        *blocks("time", *_timeline(analysis)),
        *blocks("domains", _domains(analysis) if analysis.domains else None, only=Only.PAGE),
        *blocks("", Items("How it was read", words.remarks(log, analysis.key)), only=Only.TERMINAL),
    ]
    meanings = {**_WORDS, **{_NAMES[kind]: kind.meaning for kind in Kind}}
    return Document("simulate", "Which window, which expiry?", log, analysis.key, _SECTIONS, shown, meanings)


def _findings(analysis: Analysis) -> tuple[list[str], list[str]]:
    """The findings that make it doubtful whether this is the right log; the other findings."""
    doubts: list[str] = []
    others: list[str] = []
    for finding in analysis.findings:
        (doubts if finding.id in DOUBTS else others).append(words.sanitised(finding.text, words.LONGEST_PARAGRAPH))
    return doubts, others


def _kinds(analysis: Analysis) -> Table:
    """One row for each kind of setting. If `keep` equals today's setting, one row stands for both. If the log has no needs (no
    duplicate, or all may be missed), only `keep` and yours are shown, unless another kind is recommended.
    """
    recommended, keep, present = analysis.recommendation.sized, analysis.of(Kind.KEEP), analysis.of(Kind.PRESENT)
    is_one_row = present.setting == keep.setting
    kinds = [sized for sized in analysis.kinds if not (is_one_row and sized is present)]
    if not analysis.evidence.window_need and recommended is keep:
        kinds = [sized for sized in kinds if sized in {keep, present}]
    names = _NAMES | {Kind.KEEP: "keep, yours"} if is_one_row else _NAMES
    return Table.of(
        "The settings to choose from",
        kinds,
        [
            (Column("", Cells.WORD), lambda sized: f"{_mark(sized == recommended) or '  '}{names[sized.kind]}"),
            (Column("W"), lambda sized: count(sized.setting.window)),
            (Column("E"), lambda sized: seconds(sized.setting.expiry_us)),
            (Column("missed\nhere"), lambda sized: count(sized.setting.missed)),
            (Column("missed\nunseen"), lambda sized: "-" if sized.unseen is None else count(sized.unseen.missed)),
            (Column("most ids"), lambda sized: count(sized.setting.peak_ids)),
            (Column("memory"), lambda sized: words.size(sized.memory_bytes)),
            (Column("database", is_spare=True), lambda sized: words.size(sized.database_bytes)),
        ],
        marked=[recommended],
        note=f"W: {_WINDOW}. E: {_EXPIRY}. Memory: this package's, {count(analysis.bytes_per_id, 'byte')} an id, "
        "more for long ids.",
    )


def _mark(is_recommended: bool) -> str:  # noqa: FBT001 - private
    return MARK if is_recommended else ""


def _curves(analysis: Analysis) -> Iterator[Text | Chart]:
    """The curves of what each tier alone misses; none without duplicates."""
    evidence = analysis.evidence
    if not analysis.log.duplicates:
        return
    if evidence.expiry_need_us:
        times = f"{three_digits(evidence.span_us / evidence.expiry_need_us)} times ".removeprefix("1 times ")
        yield Text(f"The log is {times}as long as its longest repeat needs, {duration(evidence.expiry_need_us)}.")
    yield _curve(analysis, 0, "W alone (E = 0)", "window W", word=count, exact=count)
    yield _curve(analysis, 1, "E alone (W = 0)", "expiry E", word=duration, exact=seconds)


def _curve(
    analysis: Analysis, size: int, title: str, axis: str, *, word: Callable[[int], str], exact: Callable[[int], str]
) -> Chart:
    """The curve of what one tier alone misses. `size` is the tier's index in a pair: 0 for W, 1 for E."""
    evidence = analysis.evidence
    need = (evidence.window_need, evidence.expiry_need_us)[size]
    curve = (analysis.missed_by_window, analysis.missed_by_expiry_us)[size]
    marks = {
        "recommended": analysis.recommendation.setting.pair[size],
        "yours": analysis.of(Kind.PRESENT).setting.pair[size],
        "supported": analysis.of(Kind.BOTH).setting.pair[size],
    }
    rows = [[word(value), count(missed)] for value, missed in curve[-_MOST_STEPS:]]
    (_, last), (largest, _) = curve[-2:]
    they = "The last one needs" if last == 1 else f"The last {count(last)} need up to"
    return Chart(
        ("by-window", "by-expiry")[size],
        title,
        f"{they} {word(largest)}.",
        lambda charts: charts.curve_chart(curve, charts.marks_of((need, word(need)), marks, exact), word, axis),
        Table(f"Missed with {title}, near the largest needs", [Column(axis), Column("missed")], rows),
    )


def _changes(analysis: Analysis) -> Table:
    present, recommended, evidence = analysis.of(Kind.PRESENT), analysis.recommendation.sized, analysis.evidence
    both, has_duplicates = (present.setting, recommended.setting), bool(analysis.log.duplicates)
    window, expiry = count(evidence.window_need), duration(evidence.expiry_need_us)
    rows = [
        ["window W", *(count(setting.window) for setting in both), window if has_duplicates else "-"],
        ["expiry E", *(seconds(setting.expiry_us) for setting in both), expiry if has_duplicates else "-"],
        ["duplicates missed", *(count(setting.missed) for setting in both), ""],
        ["most ids kept", *(count(setting.peak_ids) for setting in both), ""],
        ["memory", *(words.size(sized.memory_bytes) for sized in (present, recommended)), ""],
    ]
    columns = [Column("", Cells.WORD), Column("yours"), Column("recommended"), Column("the log needs")]
    return Table("What changes", columns, rows)


@dataclass(frozen=True, slots=True)
class ShownGrid:
    """Settings by window and expiry. Pairs may be missing: (0, 0), or in the row and column of a recommendation off the grid."""

    windows: tuple[int, ...]
    expiries_us: tuple[int, ...]
    cells: dict[tuple[int, int], SettingFigures]
    left_out: int
    """How many settings of the analysis the grid doesn't show."""

    @property
    def is_numbered(self) -> bool:
        """Whether the chart's cells are wide enough for figures."""
        return len(self.expiries_us) <= _MOST_NUMBERED_COLUMNS


def _all_settings(analysis: Analysis) -> list[SettingFigures]:
    """The settings tried, and the recommended setting if it is off the grid."""
    return list(dict.fromkeys([*analysis.settings, analysis.recommendation.setting]))


def shown_grid(analysis: Analysis, most: int = _MOST_GRID_LINES, beside: Sequence[SettingFigures] = ()) -> ShownGrid:
    """The grid with at most `most` windows and at most `most` expiries.

    The recommended setting and those in `beside` are always included, even if they are off the grid.
    """
    settings = {setting.pair: setting for setting in (*_all_settings(analysis), *beside)}
    kept = (analysis.recommendation.setting, *beside)
    windows = _axis((window for window, _ in settings), most, {setting.window for setting in kept})
    expiries_us = _axis((expiry_us for _, expiry_us in settings), most, {setting.expiry_us for setting in kept})
    cells = {pair: settings[pair] for pair in product(windows, expiries_us) if pair in settings}
    return ShownGrid(windows, expiries_us, cells, left_out=len(settings) - len(cells))


def _axis(values: Iterable[int], most: int, kept: set[int]) -> tuple[int, ...]:
    distinct = sorted(set(values))
    if len(distinct) <= most:
        return tuple(distinct)
    return tuple(sorted({*thinned(distinct, most - len(kept)), *kept}))


def thinned(items: Sequence[T], most: int) -> list[T]:
    """At most `most` of the items, evenly spaced, including the first and the last. `most` is at least 2."""
    if len(items) <= most:
        return list(items)
    last = len(items) - 1
    return [items[round(index * last / (most - 1))] for index in range(most)]


def _grid_chart(analysis: Analysis) -> Chart:
    recommended, present = analysis.recommendation.setting, analysis.of(Kind.PRESENT).setting
    grid, without_present = shown_grid(analysis, beside=[present]), shown_grid(analysis)
    caption = (
        "Green cells miss nothing; the darker the others, the more they miss. The solid frame is the recommended setting, "
        "the dashed one yours. Point at a cell to see its ids and memory."
    )
    if grid.left_out:
        caption += f" Left out here: {count(grid.left_out)} of the {count(len(analysis.settings))} settings tried."
    return Chart(
        "missed",
        "What each setting would have missed",
        caption,
        lambda charts: charts.heat_map(grid, recommended, present, analysis.bytes_per_id),
        None if len(grid.cells) > _MOST_CELLS_AS_TABLE else _grid_table(without_present, recommended),
        instead=_frontier_table(analysis),
        least_width_em=6 + (3 if grid.is_numbered else 1) * len(grid.expiries_us),
    )


def _grid_table(grid: ShownGrid, recommended: SettingFigures) -> Table:
    def cell(setting: SettingFigures | None) -> str:
        if setting is None:
            return "-"
        return f"{_mark(setting == recommended)}{count(setting.missed)}\n{words.compact(setting.peak_ids)}"

    return Table(
        "Duplicates missed, and below them the most ids kept, by window W and expiry E",
        [Column("W \\ E"), *(Column(seconds(expiry_us)) for expiry_us in grid.expiries_us)],
        [
            [count(window), *(cell(grid.cells.get((window, expiry_us))) for expiry_us in grid.expiries_us)]
            for window in grid.windows
        ],
        note=f"{MARK}recommended   - not tried   k thousand, M million",
    )


def frontier(settings: Iterable[SettingFigures]) -> list[SettingFigures]:
    """The Pareto frontier: the settings that no other beats in ids kept and duplicates missed, ordered by ids kept.

    Of settings with equal figures, only the one with the smallest window, then the smallest expiry, is included.
    """
    best: list[SettingFigures] = []
    for setting in sorted(settings, key=lambda s: (s.peak_ids, s.missed, s.window, s.expiry_us)):
        if not best or setting.missed < best[-1].missed:
            best.append(setting)
    return best


def _frontier_table(analysis: Analysis) -> Table:
    recommended, best = analysis.recommendation.setting, frontier(_all_settings(analysis))
    shown = thinned(best, _MOST_FRONTIER_ROWS)
    hidden = len(best) - len(shown)
    if recommended not in shown:
        hidden -= recommended in best
        shown = sorted([*shown, recommended], key=lambda setting: (setting.peak_ids, -setting.missed))
    return Table.of(
        f"The settings worth a look: of {count(len(analysis.settings))} tried, none misses fewer for less",
        shown,
        [
            (Column("W"), lambda setting: f"{_mark(setting == recommended)}{count(setting.window)}"),
            (Column("E"), lambda setting: seconds(setting.expiry_us)),
            (Column("missed"), lambda setting: count(setting.missed)),
            (Column("most ids kept"), lambda setting: count(setting.peak_ids)),
            (Column("memory"), lambda setting: words.size(setting.peak_ids * analysis.bytes_per_id)),
        ],
        marked=[recommended],
        note=f"{MARK}recommended" + (f"\nLeft out between these: {count(hidden)}." if hidden else ""),
    )


def _timeline(analysis: Analysis) -> list[Chart]:
    timeline = analysis.timeline
    if timeline is None:
        return []
    caption = f"Per slice of {duration(timeline.slice_us)}, by the time received as the log has it, in UTC."

    def chart(noun: str, counts: tuple[int, ...]) -> Chart:
        title = f"{noun.capitalize()} over time"
        return Chart(noun, title, caption, lambda charts: charts.timeline_chart(timeline, counts, noun))

    return [chart("receipts", timeline.receipts), chart("duplicates", timeline.duplicates)]


def _sources(analysis: Analysis) -> Table:
    domain = (Column("domain", Cells.NAME, is_spare=True), lambda source: words.named_domain(source.domain))
    return Table.of(
        "Sources that need most, and the W or E that would do for each alone",
        analysis.sources[:_MOST_SOURCES],
        [
            (Column("source", Cells.NAME), lambda source: words.named_source(source.source)),
            *([domain] if len(analysis.domains) > 1 else []),
            (Column("receipts"), lambda source: count(source.receipts)),
            (Column("duplicates"), lambda source: count(source.duplicates)),
            (Column("needs W"), lambda source: count(source.window_need)),
            (Column("or E"), lambda source: duration(source.expiry_need_us)),
            (Column("W to spare", is_spare=True), lambda source: words.or_dash(source.window_left)),
            (Column("E to spare", is_spare=True), lambda source: words.or_dash(source.expiry_left_us, duration)),
        ],
    )


def _headroom_left(analysis: Analysis) -> str:
    """How nearly the recommended setting missed the duplicates that it catches; empty if it catches none."""
    headroom, said = analysis.headroom, []
    if headroom.least_window_left is not None:
        left = count(headroom.least_window_left, "id")
        said.append(
            f"{count(headroom.caught_by_source, 'duplicate')} caught by a source's own queue, the closest with {left}"
        )
    if headroom.least_expiry_left_us is not None:
        left = duration(headroom.least_expiry_left_us)
        said.append(
            f"{count(headroom.caught_by_time, 'duplicate')} caught by the time queue alone, the closest with {left}"
        )
    return "; ".join(f"{each} to spare" for each in said) + "." if said else ""


def _domains(analysis: Analysis) -> Table:
    worst = sorted(analysis.domains, key=lambda domain: (-domain.duplicates, -domain.receipts, domain.domain))
    more = len(worst) - words.MOST_DOMAINS
    recommended = analysis.recommendation.setting

    def of_recommended(domain: DomainFigures, figure: Callable[[SettingFigures], int]) -> str:
        # A recommended setting that is off the grid has no figures by domain.
        return next((count(figure(each)) for each in domain.settings if each.pair == recommended.pair), "-")

    return Table.of(
        "Domains, most duplicates first" + (f"; {count(more)} more not shown" if more > 0 else ""),
        worst[: words.MOST_DOMAINS],
        [
            (Column("domain", Cells.NAME), lambda domain: words.named_domain(domain.domain)),
            (Column("receipts"), lambda domain: count(domain.receipts)),
            (Column("sources"), lambda domain: count(domain.sources)),
            (Column("duplicates"), lambda domain: count(domain.duplicates)),
            (Column("needs W"), lambda domain: count(domain.window_need)),
            (Column("or E"), lambda domain: duration(domain.expiry_need_us)),
            (Column("missed if recommended"), lambda domain: of_recommended(domain, lambda setting: setting.missed)),
            (Column("most ids kept"), lambda domain: of_recommended(domain, lambda setting: setting.peak_ids)),
        ],
    )
