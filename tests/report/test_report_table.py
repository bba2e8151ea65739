"""The table as it comes out of a pipe and on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from analyses import empty, hostile, large, realistic
from rich.cells import cell_len
from rich.console import Console

from receiver.report.sizing import analysis_document
from receiver.report.terminal import print_document
from receiver.simulate.figures import Grade, Kind


def printed(analysis, width=80, *, terminal=False):
    out = io.StringIO()
    print_document(
        analysis_document(analysis),
        Console(file=out, width=width, force_terminal=terminal, color_system="standard" if terminal else None),
    )
    return out.getvalue()


def test_eight_lines_say_the_decision():
    """What to set, how sure that is, what it guarantees, what it rests on and what it costs; then what was read."""
    assert printed(realistic()).splitlines()[:10] == [
        "Set W = 200 ids per source and E = 5 s. Evidence: fair.",
        "  A repeat within 5 s is caught, however busy it was.",
        "  A repeat within its source's last 200 ids is caught, however late: 800 ms of",
        "  the busiest source at its peak.",
        "  It misses none of 941 duplicates here. They need W = 97 or E = 2.4 s, and came",
        "  in 19 bursts in 5 min 3 s.",
        "  Sized on one half of the log, it misses none of the other half.",
        "  It keeps at most 6,500 ids: 1.66 MB of memory, 1.04 MB in the database.",
        "",
        "215,293 receipts, 941 duplicates (0.44 % of all), from 15 sources in 2 domains,",
    ]


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


def test_beside_a_setting_asked_for_the_recommended_one_is_named():
    alone = replace(realistic(), settings=realistic().settings[:1])
    assert "The recommended setting misses none of 941 duplicates here." in " ".join(printed(alone).split())


def row_of(kind, lines):
    return next(line.split() for line in lines if line.lstrip("> ").startswith(kind))


def test_the_kinds_stand_side_by_side_and_the_recommended_one_is_marked():
    lines = printed(realistic()).splitlines()
    assert row_of("both", lines)[:-2] == [">", "both", "200", "5", "s", "0", "0", "6,500", "1.66", "MB"]
    assert row_of("lean", lines)[:-2] == ["lean", "110", "1", "s", "2", "273", "2,350", "602", "kB"]
    assert row_of("yours", lines) == ["yours", "500", "30", "s", "0", "-", "28,500", "7.3", "MB", "4.56", "MB"]
    assert "  Your setting, W = 500 and E = 30 s, misses none of 941 duplicates and takes" in lines
    assert '  <property name="dupDetectionPerSourceExpiryWindowSize" value="200"/>' in lines
    assert '  <property name="dupDetectionExpiryTimeSecs" value="5"/>' in lines


def test_a_setting_that_is_the_default_is_no_row_of_its_own():
    kinds = {sized.kind: sized for sized in realistic().kinds}
    same = replace(kinds[Kind.PRESENT], setting=kinds[Kind.DEFAULT].setting)
    text = printed(replace(realistic(), kinds=(*list(kinds.values())[:-1], same)))
    assert row_of("default, yours", text.splitlines())[:3] == ["default,", "yours", "2,000"]
    assert text.count("yours") == 1
    assert max(map(len, text.splitlines())) <= 80
    assert "The default, W = 2,000 and E = 120 s, misses none" in text


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
        ({"window": 1}, "within its source's last 1 id is caught, however late: 4 ms"),
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
    assert "   200       -       -     > 0       -       -       -" in lines


def test_one_setting_is_shown_beside_the_recommended_one():
    asked = next(setting for setting in realistic().settings if (setting.window, setting.expiry_us) == (10, 500_000))
    text = printed(replace(realistic(), settings=(asked,)))
    assert "The setting asked for, W = 10 with E = 0.5 s, misses 691 of 941" in text
    assert {("10", "691", "-"), ("200", "-", ">", "0")} <= {tuple(line.split()) for line in text.splitlines()}


def test_two_settings_are_shown_beside_the_recommended_one():
    two = tuple(setting for setting in realistic().settings if setting.expiry_us == 500_000)[:2]
    lines = printed(replace(realistic(), settings=two)).splitlines()
    assert sum(line.split()[:1] in (["0"], ["10"], ["200"]) for line in lines) == 3


def test_long_needs_are_not_cut():
    needs = tuple(replace(source, expiry_need_us=86_399_000_000) for source in realistic().sources)
    assert " 23 h 59 min" in printed(replace(realistic(), sources=needs))


@pytest.mark.parametrize("analysis", [large(), realistic()], ids=["large", "narrow"])
def test_a_grid_that_does_not_fit_gives_way_to_its_frontier(analysis):
    text = printed(analysis, width=52)
    assert "none misses fewer for less" in text.replace("\n", " ")
    assert "> 200" in text
    assert "> recommended" in text
    assert "W \\ E" not in text


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "analysis", [realistic(), hostile(), empty(), large()], ids=["realistic", "hostile", "empty", "large"]
)
def test_a_pipe_gets_plain_lines_that_fit(analysis, width):
    text = printed(analysis, width)
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
