"""However a log is cut, its analysis has the same figures as that of the log held whole."""

from dataclasses import asdict, fields
from itertools import chain

import numpy as np
import pytest
from cut_logs import US, Cutting, File, assemble, cuttings, files, written
from hypothesis import given
from hypothesis import strategies as st

from receiver.domains import domain_key
from receiver.errors import LogFormatError
from receiver.logs import read_logs
from receiver.report.json_object import analysis_object, dumped
from receiver.settings import SimulateSettings
from receiver.simulate import compiled
from receiver.simulate.analysis import analyse, needs_together
from receiver.simulate.figures import Elsewhere
from receiver.simulate.ingest import ingest
from receiver.simulate.question import Question
from receiver.simulate.whole import WholeLog
from receiver.steps.log import cut_log
from receiver.steps.measuring import SourceTotals
from receiver.steps.replaying import ChunkedLog
from tests.choosing import cases
from tests.logs.reading import Row

KEYS = st.sampled_from(["default", "destination", "connection", "receiver", "name:all"])
QUESTIONS = st.builds(
    Question,
    key=KEYS,
    windows=st.none() | st.sets(st.integers(0, 6), min_size=1).map(sorted),
    expiries_us=st.none() | st.sets(st.sampled_from([1, 3, 10, 40, 1000]), min_size=1).map(sorted),
    settings=st.builds(
        SimulateSettings,
        max_missed=st.sampled_from([0, 0, 1, 2, 3, 5]),
        margin=st.sampled_from([1.0, 2.0]),
        budget_bytes=st.sampled_from([1, 1_000, 10**9]),
    ),
    present=st.just((2000, 120_000_000))
    | st.tuples(st.sampled_from([0, 2, 10**6]), st.sampled_from([1, 3_000_000, 10**12])),
)


def in_memory(paths, question) -> WholeLog:
    receipts = ingest(read_logs(paths, US), domain_key(question.key))
    return WholeLog(receipts, max_missed=question.settings.max_missed)


def in_chunks(paths, question, cutting) -> ChunkedLog:
    made = assemble(paths, cutting, question.key)
    return cut_log(made.pieces, made.reports, made.plan, max_missed=question.settings.max_missed)


def analysed_whole(paths, question):
    return analyse(in_memory(paths, question), question)


def analysed_in_chunks(paths, question, cutting):
    return analyse(in_chunks(paths, question, cutting), question)


def assert_same(analysis, expected):
    for field in fields(expected):
        assert getattr(analysis, field.name) == getattr(expected, field.name), field.name
    assert dumped(analysis_object(analysis)) == dumped(analysis_object(expected))


def assert_alike(paths, question, cutting):
    """Check that both analyses agree, also in figures that aren't shown."""
    chunked, whole = in_chunks(paths, question, cutting), in_memory(paths, question)
    facts = whole.facts
    np.testing.assert_equal(asdict(chunked.facts), asdict(facts))
    first, second, third = ([0, *part.windows.values.tolist()] for part in (facts.whole, *facts.halves))
    tried = first, second, third
    widest = max(map(max, tried)), 0
    assert needs_together(chunked, tried, widest) == needs_together(whole, tried, widest)
    assert_same(analyse(chunked, question), analyse(whole, question))


@pytest.mark.costly
@given(files(), cuttings, QUESTIONS)
@cases(60)
def test_no_cut_changes_a_figure(log, cutting, question):
    with written(log) as paths:
        assert_alike(paths, question, cutting)


@st.composite
def hot_domains(draw) -> list[Row]:
    """One domain with very different sources. Ids come again near and far, from their own source and from others."""
    times = 0
    rows = []
    for step, id_, source in draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 1, 1, 2, 30]),
                st.integers(0, 25),
                st.sampled_from(["busy", "busy", "busy", "calm", "", "rare"]),
            ),
            min_size=20,
            max_size=90,
        )
    ):
        times += step
        rows.append(Row(received_at=times, unique_message_id=f"id{id_}", message_source_id=source))
    return rows


@pytest.mark.costly
@given(hot_domains(), st.sampled_from([2, 7, 64]), QUESTIONS, st.integers(0, 2**32))
@cases(60)
def test_a_hot_domain_may_be_cut_into_any_number_of_chunks(rows, chunks, question, seed):
    cutting = Cutting(rows_per_unit=1000, piece_rows=50, chunks_per_domain=chunks, seed=seed)
    with written([File("csv", rows)]) as paths:
        assert_alike(paths, question, cutting)


@st.composite
def days(draw) -> list[Row]:
    """Several receipts a second, then pauses that just end bursts or just don't. Redeliveries take up to seconds."""
    steps = st.sampled_from([0, 1, 1, 250_000, 250_000, 999_999, 1_000_000, 1_000_001, 2_500_000, -400_000])
    parts = {
        "unique_message_id": st.integers(0, draw(st.sampled_from([3, 15, 60]))).map(str),
        "message_source_id": st.sampled_from(["busy", "busy", "busy", "calm", ""]),
        "destination": st.sampled_from(["q", "q", "q", "r"]),
    }
    rows, time_us = [], 1_000_000 * draw(st.integers(1, 3))
    for step in draw(st.lists(steps, min_size=5, max_size=90)):
        time_us = max(0, time_us + step)
        took_ms = draw(st.sampled_from([None, None, None, 0, 700, 1_500]))
        redelivered = took_ms is not None
        sent_ms = max(0, time_us // 1_000 - took_ms) if redelivered else 0
        rows.append(
            Row(time_us, **draw(st.fixed_dictionaries(parts)), jms_redelivered=redelivered, jms_timestamp=sent_ms)
        )
    return rows


@pytest.mark.costly
@given(days(), st.sampled_from([1, 2, 7, 64]), QUESTIONS, st.integers(0, 2**32))
@cases(120)
def test_seconds_bursts_halves_and_ids_may_go_on_over_any_number_of_chunks(rows, chunks, question, seed):
    cutting = Cutting(rows_per_unit=1000, piece_rows=50, chunks_per_domain=chunks, seed=seed, cores=3)
    with written([File("csv", rows)]) as paths:
        assert_alike(paths, question, cutting)


SECOND_US = 1_000_000


@pytest.mark.parametrize("chunks", [1, 2, 7, 64])
def test_what_goes_on_from_chunk_to_chunk_is_counted_once(chunks):
    """A burst of 20 repeats within one second, and another a minute later, sent by another source."""
    firsts = [Row(SECOND_US * number, f"id{number}", "a") for number in range(20)]
    again = [Row(SECOND_US * 30 + number, f"id{number}", "a") for number in range(20)]
    at_last = [Row(SECOND_US * 90 + number, f"id{number}", "b") for number in range(20)]
    new = [Row(SECOND_US * 31 + number, f"new{number}", "a") for number in range(5)]
    cutting = Cutting(rows_per_unit=1000, piece_rows=50, chunks_per_domain=chunks)
    question = Question("default", settings=SimulateSettings(max_missed=1))
    with written([File("csv", list(chain(firsts, again, new, at_last)))]) as paths:
        assert_alike(paths, question, cutting)
        log = in_chunks(paths, question, cutting)
        analysis = analyse(log, question)
    assert analysis.evidence.bursts == 2
    assert analysis.peak_per_second == 20
    assert analysis.elsewhere == Elsewhere(artemis_id_cache_size=25, lru_size=25, ttl_us=90 * SECOND_US, sources=2)
    assert (log.facts.from_other_sources, log.facts.most_repeats) == (20, 2)
    assert [half.windows.total for half in log.facts.halves] == [20, 20]
    assert [half.window for half in log.facts.halves] == [20, 24]


@pytest.mark.parametrize(("gap_us", "bursts"), [(SECOND_US, 1), (SECOND_US + 1, 10)])
def test_a_burst_goes_on_behind_a_cut_as_long_as_no_pause_is_longer_than_a_second(gap_us, bursts):
    rows = [Row(number, f"id{number}") for number in range(10)]
    rows += [Row(SECOND_US + gap_us * number, f"id{number}") for number in range(10)]
    with written([File("csv", rows)]) as paths:
        log = in_chunks(paths, Question("default"), Cutting(rows_per_unit=1000, chunks_per_domain=4))
    assert (log.plan.chunks, log.facts.bursts) == (4, bursts)


def test_a_second_that_a_cut_parts_is_not_taken_for_a_busier_one_before():
    times = [*range(10), *range(SECOND_US, SECOND_US + 6), *(SECOND_US * number for number in range(2, 12))]
    cutting = Cutting(rows_per_unit=1000, chunks_per_domain=2)
    with written([File("csv", [Row(time, f"id{time}", "a") for time in times])]) as paths:
        assert assemble(paths, cutting).plan.cut_row.tolist() == [0, 13]
        assert analysed_in_chunks(paths, Question("default"), cutting).peak_per_second == 10


def test_an_id_with_both_ends_in_one_chunk_may_need_more_than_one_that_goes_on():
    names = ["far", *(f"a{number}" for number in range(20)), "far", *(f"b{number}" for number in range(9))]
    names += ["near", "near", *(f"c{number}" for number in range(31))]
    rows = [Row(SECOND_US * number, name) for number, name in enumerate(names)]
    cutting = Cutting(rows_per_unit=1000, chunks_per_domain=2)
    with written([File("csv", rows)]) as paths:
        assert assemble(paths, cutting).plan.cut_row.tolist() == [0, 32]  # between the two receipts of "near"
        elsewhere = analysed_in_chunks(paths, Question("default"), cutting).elsewhere
    assert elsewhere == Elsewhere(artemis_id_cache_size=21, lru_size=21, ttl_us=21 * SECOND_US, sources=1)


def test_each_chunk_looks_back_to_the_first_of_its_own_domain(monkeypatch):
    looks_back, alive_from = [], SourceTotals.alive_from

    def noting(totals, first, chunk):
        looks_back.append((first, chunk))
        return alive_from(totals, first, chunk)

    monkeypatch.setattr(SourceTotals, "alive_from", noting)
    rows = [Row(time, f"id{time % 12}", destination=f"q{time % 3}") for time in range(90)]
    with written([File("csv", rows)]) as paths:
        in_chunks(paths, Question("destination"), Cutting(rows_per_unit=1000, chunks_per_domain=3))
    assert sorted(looks_back, key=lambda each: each[1]) == [(chunk - chunk % 3, chunk) for chunk in range(9)]


def test_no_larger_setting_is_asked_for_than_the_tails_suit():
    """Otherwise everything that is kept would be made twice."""
    rows = [
        Row(SECOND_US * number, f"id{number**2 % (17 if number < 70 else 83)}", "ab"[number % 2])
        for number in range(200)
    ]
    rows.append(Row(SECOND_US * 200, "id1", "a", jms_redelivered=True, jms_timestamp=20_000))  # it took 180 s
    for question in (
        Question("default"),
        Question("default", [1], [SECOND_US]),
        Question("default", [1], [SECOND_US], SimulateSettings(max_missed=30, margin=100.0)),
        Question("default", [1], [SECOND_US], present=(10**6, 1)),
        Question("default", [1], [SECOND_US], present=(1, 10**12)),
    ):
        with written([File("csv", rows)]) as paths:
            made = assemble(paths, Cutting(rows_per_unit=1000, chunks_per_domain=7))
            max_missed = question.settings.max_missed
            analyse(cut_log(made.pieces, made.reports, made.plan, max_missed=max_missed), question)
        steps = list(dict.fromkeys(made.pieces.steps))
        assert steps[-3:] == ["Putting chunks behind their tails", "Trying windows", "Replaying"]
        kept = [step for step in made.pieces.steps if step == "Putting chunks behind their tails"]
        assert len(kept) == 2, question  # it is kept, and its counts are brought here


@pytest.mark.parametrize("chunks", [1, 2, 7, 64])
def test_sources_that_ended_are_counted_over_all_of_their_chunks(chunks):
    """The middle is 49. One sender's last id comes just then. Another's counts as received later than it says."""
    rows = [Row(time, f"id{time}", f"gw:{time // 10}", destination=f"q{time % 2}") for time in range(100)]
    rows.append(Row(5, "stepped back", "gw", destination="q1"))
    cutting = Cutting(rows_per_unit=1000, piece_rows=50, chunks_per_domain=chunks)
    with written([File("csv", rows)]) as paths:
        analysis = analysed_in_chunks(paths, Question("destination"), cutting)
        assert_same(analysis, analysed_whole(paths, Question("destination")))
    (text,) = [finding.text for finding in analysis.findings if finding.id == "ended-sources"]
    assert "9 of 21. Of the ids" in text
    assert "up to 45 of 101 (44.6 %)" in text


@pytest.mark.parametrize("chunks", [1, 2, 7, 64])
def test_the_chunks_are_as_many_as_they_are_meant_to_be(chunks):
    rows = [Row(received_at=time, unique_message_id=f"id{time % 40}") for time in range(200)]
    cutting = Cutting(rows_per_unit=1000, chunks_per_domain=chunks)
    with written([File("csv", rows)]) as paths:
        assert assemble(paths, cutting).plan.chunks == chunks
        assert_same(analysed_in_chunks(paths, Question("default"), cutting), analysed_whole(paths, Question("default")))


def test_a_log_of_more_receipts_than_one_process_can_number(monkeypatch):
    """One process refuses such a log. Each file and each chunk is smaller."""
    rows = [Row(received_at=time, unique_message_id=f"id{time % 40}") for time in range(200)]
    with written([File("csv", rows[:100]), File("csv", rows[100:])]) as paths:
        expected = analysed_whole(paths, Question("default"))
        monkeypatch.setattr(compiled, "MOST_NUMBERED", 150)
        assert_same(analysed_in_chunks(paths, Question("default"), Cutting(chunks_per_domain=7)), expected)
        with pytest.raises(LogFormatError, match="more than 150 receipts,"):
            analysed_whole(paths, Question("default"))


def test_a_file_of_more_receipts_than_its_rows_can_number(monkeypatch):
    rows = [Row(received_at=time, unique_message_id=f"id{time}") for time in range(200)]
    monkeypatch.setattr(compiled, "MOST_NUMBERED", 150)
    with (
        written([File("csv", rows)]) as paths,
        pytest.raises(LogFormatError, match="more than 150 receipts in one file") as caught,
    ):
        analysed_in_chunks(paths, Question("default"), Cutting(chunks_per_domain=7))
    assert "cut the file in two" in caught.value.hint
