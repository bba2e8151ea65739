"""The table as printed to a pipe and to a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from analyses import advised, empty, hostile, large, of_kind, realistic, setting_at
from rich.cells import cell_len
from rich.console import Console

from receiver.report.document import Chart
from receiver.report.sizing import analysis_document, frontier
from receiver.report.terminal import print_document
from receiver.simulate.figures import Finding, Grade, Kind


def printed(analysis, width=80, *, terminal=False, allowed_missed=None):
    out = io.StringIO()
    print_document(
        analysis_document(analysis, allowed_missed=allowed_missed),
        Console(file=out, width=width, force_terminal=terminal, color_system="standard" if terminal else None),
    )
    return out.getvalue()


def said(analysis, **how):
    return " ".join(printed(analysis, **how).split())


def test_the_first_lines_say_the_decision():
    """The setting, the log's support, the guarantee, the evidence and the cost; then what was read."""
    assert printed(realistic()).splitlines()[:13] == [
        "Keep W = 500 ids per source and E = 30 s.",
        "  The log itself supports W = 200 and E = 5 s. Lowering to that would save 5.63",
        "  MB of 7.3 MB: do it only where memory is short. Evidence: fair.",
        "  A repeat within 30 s is caught, however busy it was.",
        "  A repeat within its source's last 500 ids is caught, however late. (At its",
        "  peak the busiest source sends that many in 2 s.)",
        "  It misses none of 941 duplicates here. They need W = 97 or E = 2.4 s, and came",
        "  in 19 bursts in 5 min 3 s.",
        "  W and E sized on either half of the log miss none in the other.",
        "  It keeps at most 28,500 ids. They take this package 7.3 MB of memory and 4.56",
        "  MB in its database; a correlator's memory isn't measured.",
        "",
        "215,293 receipts, 941 duplicates (0.44 % of all), from 15 sources in 2 domains,",
    ]


@pytest.mark.parametrize(
    ("present", "decision"),
    [
        ((500, 30_000_000), "Keep W = 500 ids per source and E = 30 s."),
        ((100, 30_000_000), "Raise W from 100 to 500 ids per source and keep E = 30 s."),
        ((500, 1_500_000), "Keep W = 500 ids per source and raise E from 1.5 s to 30 s."),
        ((0, 1), "Raise W from 0 to 500 ids per source and E from 0.000001 s to 30 s."),
        ((2_000, 120_000_000), "Lower W from 2,000 to 500 ids per source and E from 120 s to 30 s."),
        ((2_000, 30_000_000), "Lower W from 2,000 to 500 ids per source and keep E = 30 s."),
        ((500, 40_000_000), "Keep W = 500 ids per source and lower E from 40 s to 30 s."),
        ((1, 40_000_000), "Raise W from 1 to 500 ids per source and lower E from 40 s to 30 s."),
        ((1_000, 1_000_000), "Lower W from 1,000 to 500 ids per source and raise E from 1 s to 30 s."),
    ],
)
def test_each_of_both_is_kept_raised_or_lowered(present, decision):
    assert said(advised(Kind.KEEP, present)).startswith(decision)


def test_a_key_in_doubt_is_part_of_the_decision():
    caveat = "But first run again with --domain destination: this KEY counts 466 duplicates."
    text = printed(advised(Kind.KEEP, caveat=caveat), terminal=True, width=200)
    assert text.splitlines()[0] == f"\x1b[1;32mKeep W = 500 ids per source and E = 30 s. {caveat}\x1b[0m"


@pytest.mark.parametrize(
    ("kind", "both", "grade", "supported"),
    [
        ("keep", (200, 30_000_000), "fair", "Lowering W to that would save 1.15 MB of 7.3 MB: do it only where memory is short."),
        ("keep", (500, 5_000_000), "strong", "Lowering E to that would save 4.48 MB of 7.3 MB: do it only where"),
        ("keep", (200, 5_000_000), "weak", "Lowering to that would save 5.63 MB of 7.3 MB: it shows too little for that."),
        ("keep", (500, 30_000_000), "fair", "This setting is what the log itself supports."),
        ("both", (200, 5_000_000), "fair", "This setting is what the log itself supports."),
        ("lean", (200, 5_000_000), "fair", "The log itself supports W = 200 and E = 5 s, which takes 1.66 MB."),
    ],
)  # fmt: skip
def test_what_the_log_itself_supports_and_what_lowering_to_that_would_save(kind, both, grade, supported):
    analysis = advised(Kind(kind))
    evidence = replace(analysis.evidence, grade=Grade(grade))
    analysis = replace(of_kind(analysis, Kind.BOTH, setting_at(*both)), evidence=evidence)
    text = said(analysis)
    assert supported in text
    assert text.count(f"Evidence: {grade}.") == 1


def test_without_a_duplicate_a_rule_may_raise_e():
    analysis = replace(empty(), recommendation=replace(empty().recommendation, present=(2_000, 100)))
    assert "No duplicate asks to raise E: it is at least a second, and at least three times the" in said(analysis)
    assert "The log itself asks for nothing." in said(empty())


def test_lowering_may_save_nothing():
    analysis = of_kind(realistic(), Kind.BOTH, replace(setting_at(200, 5_000_000), peak_ids=28_500))
    sized = replace(analysis.of(Kind.BOTH), memory_bytes=analysis.of(Kind.KEEP).memory_bytes)
    kinds = tuple(sized if one.kind is Kind.BOTH else one for one in analysis.kinds)
    assert "Lowering to that would save no memory." in said(replace(analysis, kinds=kinds))


def test_what_a_budget_risks_stands_below_the_decision():
    lines = printed(advised(Kind.LEAN, risk="Memory decides.")).splitlines()
    assert lines[:2] == ["Lower W from 500 to 110 ids per source and E from 30 s to 1 s.", "  Memory decides."]


def test_what_makes_the_log_doubtful_stands_below_the_decision():
    doubt = Finding("one-second", "All times fall into one second.")
    lines = printed(replace(realistic(), findings=(doubt, *realistic().findings))).splitlines()
    assert lines[1] == "- All times fall into one second."
    assert sum("All times" in line for line in lines) == 1


@pytest.mark.parametrize(("grade", "colour"), [("strong", "32"), ("fair", "33"), ("weak", "31")])
def test_the_grade_is_a_word_and_a_colour(grade, colour):
    evidence = replace(realistic().evidence, grade=Grade(grade))
    text = printed(replace(realistic(), evidence=evidence), terminal=True)
    assert f"\x1b[{colour}mEvidence: {grade}." in text


def test_weak_evidence_says_what_it_lacks():
    weak = replace(realistic().evidence, grade=Grade.WEAK, bursts=8)
    assert "The evidence is weak: 8 bursts, where fair takes 10." in printed(replace(realistic(), evidence=weak))
    assert "evidence is weak" not in printed(realistic())


def test_a_log_without_send_times_knows_no_longest_delivery():
    log = replace(realistic().log, redelivered=49, max_delivery_secs=0.0)
    said = " ".join(printed(replace(realistic(), log=log)).split())
    assert "49 receipts flagged JMSRedelivered, the longest delivery unknown, for the log has no jms_timestamp." in said


ASKED = next(setting for setting in realistic().settings if setting.pair == (10, 500_000))


@pytest.mark.parametrize(
    ("allowed", "verdict"),
    [
        (None, ""),
        (690, " This fails: --fail-on-missed allows 690."),
        (691, " This passes: --fail-on-missed allows 691."),
    ],
)
def test_the_question_that_was_asked_is_answered_first(allowed, verdict):
    lines = printed(replace(realistic(), settings=(ASKED,)), width=200, allowed_missed=allowed).splitlines()
    assert lines[:3] == [
        f"W = 10 and E = 0.5 s would miss 691 of 941 duplicates (73.4 %).{verdict}",
        "  It keeps at most 500 ids, 128 kB of this package's memory.",
        "Keep W = 500 ids per source and E = 30 s.",
    ]
    assert any("The recommended setting misses none of 941 duplicates here." in line for line in lines)
    assert "would miss 691" not in printed(realistic(), allowed_missed=allowed)


def row_of(kind, lines):
    return next(line.split() for line in lines if line.lstrip("> ").startswith(kind))


def test_the_kinds_stand_side_by_side_and_the_recommended_one_is_marked():
    lines = printed(advised(Kind.BOTH)).splitlines()
    assert row_of("both", lines)[:-2] == [">", "both", "200", "5", "s", "0", "0", "6,500", "1.66", "MB"]
    assert row_of("lean", lines)[:-2] == ["lean", "110", "1", "s", "2", "273", "2,350", "602", "kB"]
    assert row_of("keep, yours", lines) == ["keep,", "yours", "500", "30", "s", "0", "-", "28,500", "7.3", "MB", "4.56", "MB"]  # fmt: skip
    assert "  Your setting, W = 500 and E = 30 s, misses none of 941 duplicates and takes" in lines
    assert '  <property name="dupDetectionPerSourceExpiryWindowSize" value="200"/>' in lines
    assert '  <property name="dupDetectionExpiryTimeSecs" value="5"/>' in lines


def test_what_is_raised_is_another_row_than_yours():
    lines = printed(of_kind(advised(Kind.KEEP, (100, 1_000)), Kind.PRESENT, setting_at(100, 1_000))).splitlines()
    assert row_of("keep", lines)[:4] == [">", "keep", "500", "30"]
    assert row_of("yours", lines)[:4] == ["yours", "100", "0.001", "s"]


def test_the_default_is_called_so_and_another_setting_is_asked_for():
    default = setting_at(2_000, 120_000_000)
    analysis = of_kind(of_kind(realistic(), Kind.KEEP, default), Kind.PRESENT, default)
    sized = analysis.of(Kind.KEEP)
    recommendation = replace(analysis.recommendation, sized=sized, present=default.pair)
    text = said(replace(analysis, recommendation=recommendation))
    assert text.startswith("Keep the defaults, W = 2,000 ids per source and E = 120 s. ")
    assert "The default, W = 2,000 and E = 120 s, is kept. Is something else set today? Name it: --current W,E." in text
    assert "--current" not in said(realistic())


def test_a_log_that_asks_for_nothing_has_no_rows_for_what_it_asks():
    lines = printed(empty()).splitlines()
    assert row_of("keep, yours", lines)[1:4] == ["keep,", "yours", "2,000"]
    assert not [line for line in lines if line.split()[:1] in (["both"], ["window"], ["lean"])]
    small = replace(empty(), recommendation=replace(empty().recommendation, sized=empty().of(Kind.BOTH)))
    assert row_of("both", printed(small).splitlines())[:3] == [">", "both", "0"]


def test_whose_memory_it_is_and_what_w_and_e_are():
    text = said(realistic())
    assert (
        "W: how many of its newest ids each source keeps. E: an id pushed out of W is kept until one that came more than E "
        "later is pushed out too; time alone forgets nothing. Memory: this package's, 256 bytes an id, more for long ids."
    ) in text
    assert "k thousand, M million" in text


def test_apama_takes_whole_seconds():
    sized = realistic().recommendation.sized
    setting = replace(sized.setting, expiry_us=4_500_001)
    recommendation = replace(realistic().recommendation, sized=replace(sized, setting=setting))
    assert 'TimeSecs" value="5"/>' in printed(replace(realistic(), recommendation=recommendation))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"window": 0}, "No number of ids is guaranteed: W is 0."),
        ({"expiry_us": 0}, "No time is guaranteed: E is 0."),
        (
            {"window": 1},
            "within its source's last 1 id is caught, however late. (At its peak the busiest source sends that many in 4 ms.)",
        ),
    ],
)
def test_what_is_not_guaranteed(setting, said):
    sized = realistic().recommendation.sized
    recommendation = replace(
        realistic().recommendation, sized=replace(sized, setting=replace(sized.setting, **setting))
    )
    assert said in " ".join(printed(replace(realistic(), recommendation=recommendation)).split())


def test_the_grid_marks_the_recommended_cell():
    lines = [line.rstrip() for line in printed(realistic()).splitlines()]
    head = lines.index(" W \\ E     0 s   0.5 s     5 s    30 s   120 s   600 s")
    assert lines[head + 2 : head + 6] == [
        "     0       -     798      22       0       0       0",
        "                   350   3,500     21k     84k    214k",
        "    10     807     691      19       0       0       0",
        "           150     500   3,650   21.1k   84.2k    214k",
    ]
    assert "   500       0       0       0     > 0       0       0" in lines


def test_one_setting_is_shown_beside_the_recommended_one():
    text = printed(replace(realistic(), settings=(ASKED,)))
    assert {("10", "691", "-"), ("500", "-", ">", "0")} <= {tuple(line.split()) for line in text.splitlines()}


def test_two_settings_are_shown_beside_the_recommended_one():
    two = tuple(setting for setting in realistic().settings if setting.expiry_us == 500_000)[:2]
    lines = printed(replace(realistic(), settings=two)).splitlines()
    grid = lines[lines.index(next(line for line in lines if line.startswith("W \\ E"))) :]
    assert [line.split()[0] for line in grid if line.split()[:1] in (["0"], ["10"], ["500"])][:3] == ["0", "10", "500"]


def test_long_needs_are_not_cut():
    needs = tuple(replace(source, expiry_need_us=86_399_000_000) for source in realistic().sources)
    assert " 23 h 59 min" in printed(replace(realistic(), sources=needs))


@pytest.mark.parametrize("width", [40, 60])
def test_no_figure_is_cut_however_narrow_the_terminal_is(width):
    both = " ".join(row_of("both", printed(realistic(), width=width).splitlines()))
    assert both == "both 200 5 s 0 0 6,500 1.66 MB"


def test_texts_of_a_table_keep_some_columns_however_narrow_the_terminal_is():
    text = printed(realistic(), width=40)
    assert "latest new" in text
    assert " ActiveMQ " in text


@pytest.mark.parametrize("analysis", [large, realistic], ids=["large", "narrow"])
def test_a_grid_that_does_not_fit_gives_way_to_its_frontier(analysis):
    text = printed(analysis(), width=52)
    assert "none misses fewer for less" in text.replace("\n", " ")
    assert "> 500" in text
    assert "> recommended" in text
    assert "W \\ E" not in text


@pytest.mark.parametrize("at", [0, 1])
def test_what_a_frontier_leaves_out_is_counted(at):
    """The recommended setting may be on the frontier or beside it."""
    best = frontier(large().settings)
    advised = large().recommendation
    advised = replace(advised, sized=replace(advised.sized, setting=best[at]))
    contents = [block.content for block in analysis_document(replace(large(), recommendation=advised)).blocks]
    shown = next(each.instead for each in contents if isinstance(each, Chart) and each.instead)
    assert len(shown.rows) == 20 + at
    assert f"Left out between these: {len(best) - len(shown.rows)}." in shown.note


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("analysis", [realistic, hostile, empty, large])
def test_a_pipe_gets_plain_lines_that_fit(analysis, width):
    text = printed(analysis(), width)
    assert all(line.isprintable() for line in text.split("\n"))
    assert max(map(cell_len, text.splitlines())) <= width


def test_hostile_text_is_shown_as_text():
    text = printed(hostile(), width=200, terminal=True)
    assert "\x1b[31mred" not in text
    assert "\\x1b[31mred" in text
    assert "[bold red]markup[/] :smile:" in text
    assert "evil.example\x1b\\" not in text


def test_findings_and_sources_are_named():
    text = printed(realistic())
    assert "- 475 of 941 duplicates came over another connection" in text
    assert "gateway-…1001:S00" in text
    assert "gateway-0.eu:51001:S00" in printed(realistic(), width=120)
