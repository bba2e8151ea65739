"""Cut however it may be, a log is analysed to the same figures as one that is held whole."""

from dataclasses import fields

import pytest
from cut_logs import US, Cutting, File, assemble, cuttings, files, written
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.domains import domain_key
from receiver.errors import LogFormatError
from receiver.logs import read_logs
from receiver.report.json_object import analysis_json
from receiver.settings import SimulateSettings
from receiver.simulate import compiled
from receiver.simulate.analysis import Question, analyse
from receiver.simulate.ingest import ingest
from receiver.simulate.whole import WholeLog
from receiver.steps.log import ChunkedLog
from tests.logs.reading import Row

KEYS = st.sampled_from(["default", "destination", "connection", "receiver", "name:all"])
QUESTIONS = st.builds(
    Question,
    key=KEYS,
    windows=st.none() | st.sets(st.integers(0, 6), min_size=1).map(sorted),
    expiries_us=st.none() | st.sets(st.sampled_from([1, 3, 10, 40, 1000]), min_size=1).map(sorted),
    settings=st.builds(SimulateSettings, max_missed=st.sampled_from([0, 0, 1, 5]), margin=st.sampled_from([1.0, 2.0])),
)


def analysed_whole(paths, question):
    receipts = ingest(read_logs(paths, US), domain_key(question.key))
    return analyse(WholeLog(receipts, max_missed=(question.settings or SimulateSettings()).max_missed), question)


def analysed_in_chunks(paths, question, cutting):
    made = assemble(paths, cutting, question.key)
    return analyse(ChunkedLog(made.plan, made.reports, made.pieces, question=question), question)


def assert_same(found, expected):
    for field in fields(expected):
        assert getattr(found, field.name) == getattr(expected, field.name), field.name
    assert analysis_json(found) == analysis_json(expected)


@given(files(), cuttings, QUESTIONS)
@settings(max_examples=60)
def test_no_cut_changes_a_figure(log, cutting, question):
    with written(log) as paths:
        assert_same(analysed_in_chunks(paths, question, cutting), analysed_whole(paths, question))


@st.composite
def hot_domains(draw) -> list[Row]:
    """One domain, its sources of very different temper: ids come again near and far, from their source and from others."""
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


@given(hot_domains(), st.sampled_from([2, 7, 64]), QUESTIONS, st.integers(0, 2**32))
@settings(max_examples=60)
def test_a_hot_domain_may_be_cut_into_any_number_of_chunks(rows, chunks, question, seed):
    cutting = Cutting(rows_per_unit=1000, piece_rows=50, chunks_per_domain=chunks, seed=seed)
    with written([File("csv", rows)]) as paths:
        assert_same(analysed_in_chunks(paths, question, cutting), analysed_whole(paths, question))


@pytest.mark.parametrize("chunks", [1, 2, 7, 64])
def test_sources_that_ended_are_counted_over_all_of_their_chunks(chunks):
    """The middle is 49: one sender's last id comes just then, another's counts as received later than it says."""
    rows = [Row(time, f"id{time}", f"gw:{time // 10}", destination=f"q{time % 2}") for time in range(100)]
    rows.append(Row(5, "stepped back", "gw", destination="q1"))
    cutting = Cutting(rows_per_unit=1000, piece_rows=50, chunks_per_domain=chunks)
    with written([File("csv", rows)]) as paths:
        found = analysed_in_chunks(paths, Question("destination"), cutting)
        assert_same(found, analysed_whole(paths, Question("destination")))
    (text,) = [finding.text for finding in found.findings if finding.kind == "ended-sources"]
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
    """Which is refused in one process; each chunk is far smaller."""
    rows = [Row(received_at=time, unique_message_id=f"id{time % 40}") for time in range(200)]
    with written([File("csv", rows)]) as paths:
        expected = analysed_whole(paths, Question("default"))
        monkeypatch.setattr(compiled, "MOST_NUMBERED", 150)
        assert_same(analysed_in_chunks(paths, Question("default"), Cutting(chunks_per_domain=7)), expected)
        with pytest.raises(LogFormatError, match="more than 150 receipts"):
            analysed_whole(paths, Question("default"))
