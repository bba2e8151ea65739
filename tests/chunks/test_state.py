"""A log that grows from run to run is analysed to the same figures as one that is read whole."""

import json
import os
import shutil
from dataclasses import fields
from itertools import chain
from pathlib import Path

import pytest
from cut_logs import US, File, files, write
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_flow import PlainFlow

from receiver.chunks.layers import joined as joined_plan
from receiver.chunks.parcels import unpack
from receiver.chunks.sizing import Sizes, chunked_log
from receiver.chunks.state import StateFolder, restored
from receiver.chunks.values import Body
from receiver.domains import domain_key
from receiver.errors import LogFormatError, OutputError, SettingsError
from receiver.logs import ReadOptions, checked_options, read_logs
from receiver.logs.files import find_files
from receiver.simulate.analysis import Question, analyse
from receiver.simulate.ingest import ingest
from receiver.simulate.whole import WholeLog
from tests.logs.reading import Row

KEYS = st.sampled_from(["default", "destination", "connection", "receiver", "name:all"])
SIZES = st.builds(Sizes, chunk_rows=st.integers(1, 40), partition_rows=st.integers(1, 60))


def whole(paths, key="default", options=US):
    return analyse(WholeLog(ingest(read_logs(paths, options), domain_key(key))), Question(key))


def grown(folder, paths, *, key="default", options=US, sizes=None, cores=1, flow=PlainFlow):
    """-> the analysis with a state, and the notes."""
    state, notes = StateFolder(Path(folder)), []
    log = chunked_log(
        state.find_files(paths),
        checked_options(options),
        domain_key(key),
        start=lambda parcels, _tasks: flow(parcels),
        cores=cores,
        sizes=sizes or Sizes(chunk_rows=7, partition_rows=5),
        state=state,
        note=notes.append,
    )
    return analyse(log, Question(key)), notes


def assert_same(found, expected):
    for field in fields(expected):
        assert getattr(found, field.name) == getattr(expected, field.name), field.name


def later(log: list[File], begin_us: int) -> list[File]:
    return [
        file._replace(rows=[row._replace(received_at=row.received_at + begin_us) for row in file.rows]) for file in log
    ]


@st.composite
def days(draw, runs: int = 3) -> list[list[File]]:
    """Each day's first receipts come after all of the day before, though a clock may step back far after that."""
    found, begin_us = [], 0
    for _ in range(runs):
        day = later(draw(files(most_files=2, most_rows=12)), begin_us)
        if day[0].rows and draw(st.integers(0, 5)) == 0:  # with a clock that steps back into the days before
            day[0].rows.append(day[-1].rows[0]._replace(received_at=draw(st.integers(0, begin_us))))
        found.append(day)
        begin_us = max(row.received_at for file in day for row in file.rows) + draw(st.integers(1, 5))
    return found


def written(folder: Path, logs: list[list[File]]) -> list[list[str]]:
    """The paths of each day."""
    paths = []
    for number, log in enumerate(logs):
        (folder / f"day{number}").mkdir()
        paths.append(write(folder / f"day{number}", log))
    return paths


def joined(paths: list[list[str]]) -> list[str]:
    return list(chain.from_iterable(paths))


@given(days(), st.lists(SIZES, min_size=3, max_size=3), KEYS, st.booleans())
@settings(max_examples=40)
def test_three_runs_in_a_row_are_one_log(tmp_path_factory, logs, sizes, key, old_files_go):
    tmp_path = tmp_path_factory.mktemp("log")
    paths = written(tmp_path, logs)
    expected = [whole(joined(paths[: run + 1]), key) for run in range(3)]
    for run in range(3):
        named = joined(paths[run if old_files_go else 0 : run + 1])
        found, notes = grown(tmp_path / "state", named, key=key, sizes=sizes[run], cores=run + 1)
        assert_same(found, expected[run])
        assert len(notes) == (old_files_go and run > 0)
        assert all("gone" in note for note in notes)
        for path in paths[run] if old_files_go else []:
            Path(path).unlink()
    found, notes = grown(tmp_path / "state", joined(paths), key=key, sizes=sizes[0])
    assert_same(found, expected[-1])
    shutil.rmtree(tmp_path)


def day(begin_us: int, rows: int = 20, ending: str = "csv") -> list[File]:
    receipts = [
        Row(begin_us + number, f"id{number % 7}", f"s{number % 3}", "c", f"q{number % 2}") for number in range(rows)
    ]
    return [File(ending, receipts)]


@pytest.fixture
def two_days(tmp_path):
    """The paths of two days of logs, of which a state has the first."""
    first, second = written(tmp_path, [day(0), day(100)])
    grown(tmp_path / "state", first)
    return [*first, *second]


def layers_in(folder: Path) -> list[str]:
    return [layer["folder"] for layer in json.loads((folder / "state.json").read_text())["layers"]]


def assert_clean(folder: Path):
    """Nothing lies there but what the state names."""
    assert sorted(path.name for path in folder.iterdir()) == sorted([*layers_in(folder), "state.json"])


def test_only_what_is_new_is_written(two_days, tmp_path):
    state = tmp_path / "state"
    before = layers_in(state)
    expected = whole(two_days)
    found, notes = grown(state, two_days)
    assert_same(found, expected)
    assert notes == []
    assert layers_in(state)[:1] == before
    assert len(layers_in(state)) == 2
    assert_clean(state)
    text = (state / "state.json").read_text()
    assert_same(grown(state, two_days)[0], expected)
    assert (state / "state.json").read_text() == text


def change(path: str) -> None:
    text = Path(path).read_text()
    Path(path).write_text(text.replace("id3", "new"))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("changed", "has changed"),
        ("left out", "isn't part of the log any more"),
        ("key", "domain key default"),
        ("options", "other options"),
        ("order", "another order"),
        ("overlapping", "don't all come after"),
        ("damaged", "missing or damaged"),
        ("no json", "can't be read"),
        ("version", "another version"),
    ],
)
def test_a_state_that_cannot_be_used_is_made_anew(two_days, tmp_path, what, said):
    state, paths, how = tmp_path / "state", two_days, {}
    if what == "changed":
        change(paths[0])
    elif what == "left out":
        paths = paths[1:]
    elif what == "key":
        how = {"key": "destination"}
    elif what == "options":
        how = {"options": ReadOptions(time_unit="us", on_error="skip")}
    elif what == "order":
        grown(state, paths)
        paths = paths[::-1]
    elif what == "overlapping":
        (tmp_path / "more").mkdir()
        paths = [*paths, *write(tmp_path / "more", day(19))]
    elif what == "damaged":
        part = max((state / layers_in(state)[0]).iterdir())
        part.write_bytes(part.read_bytes()[:-1])
    elif what == "no json":
        (state / "state.json").write_text("{")
    else:
        text = (state / "state.json").read_text()
        (state / "state.json").write_text(text.replace('"format": [\n   1', '"format": [\n   0'))
    expected = whole(paths, **how)
    found, notes = grown(state, paths, **how)
    assert_same(found, expected)
    assert len(notes) == 1
    assert said in notes[0]
    assert len(layers_in(state)) == 1
    if what != "no json":
        assert_clean(state)
    found, notes = grown(state, paths, **how)
    assert_same(found, expected)
    assert notes == []


def test_what_only_a_state_has_is_never_thrown_away(two_days, tmp_path):
    state = tmp_path / "state"
    expected = whole(two_days)
    Path(two_days[0]).unlink()
    text = (state / "state.json").read_text()
    with pytest.raises(SettingsError, match="are gone"):
        grown(state, two_days[1:], key="destination")
    assert (state / "state.json").read_text() == text
    assert_same(grown(state, two_days)[0], expected)


@pytest.mark.parametrize("named", ["day0/00.csv", "day0", "day0/*.csv", "d*/0*"])
def test_a_path_may_lead_to_what_is_gone(two_days, tmp_path, named):
    expected = whole(two_days[:1])
    Path(two_days[0]).unlink()
    Path(two_days[1]).unlink()
    found, notes = grown(tmp_path / "state", [str(tmp_path / named)])
    assert_same(found, expected)
    assert len(notes) == 1


@pytest.mark.parametrize("named", ["day1/00.csv", "nowhere", "day1", "x*"])
def test_a_path_to_nothing_is_refused(two_days, tmp_path, named):
    Path(two_days[1]).unlink()
    with pytest.raises(LogFormatError):
        grown(tmp_path / "state", [two_days[0], str(tmp_path / named)])


def test_a_day_may_be_without_receipts(two_days, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    paths = [two_days[0], *write(folder, [File("csv", [])]), two_days[1]]
    grown(tmp_path / "state", paths[:2])
    found, notes = grown(tmp_path / "state", paths)
    assert_same(found, whole(paths))
    assert notes == []


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", ["Reading receipts", "Cutting into chunks", "Reading the state", "Saving the state"])
def test_a_run_that_is_killed_leaves_the_state(two_days, tmp_path, step):
    class Killing(PlainFlow):
        def _with(self, parcels):
            return Killing(parcels)

        def kept(self, what):
            if what == step:
                raise Killed
            return self

        def collect(self, what):
            self.kept(what)
            return super().collect(what)

    text = (tmp_path / "state" / "state.json").read_text()
    with pytest.raises(Killed):
        grown(tmp_path / "state", two_days, flow=Killing)
    assert (tmp_path / "state" / "state.json").read_text() == text
    found, notes = grown(tmp_path / "state", two_days)
    assert_same(found, whole(two_days))
    assert notes == []


def test_what_killed_runs_left_goes_after_a_while(two_days, tmp_path):
    old, young, other = (tmp_path / "state" / f"layer-{name}" for name in ("0" * 16, "1" * 16, "of-something-else"))
    for folder in (old, young, other):
        folder.mkdir()
    for folder in (old, other):
        os.utime(folder, (0, 0))
    grown(tmp_path / "state", two_days)
    assert young.exists()
    assert other.exists()
    assert not old.exists()


@pytest.mark.parametrize("folder", ["../precious", "", ".", "layer-x", 7])
def test_a_state_names_nothing_but_its_own(two_days, tmp_path, folder):
    """What a damaged one named would be removed."""
    (tmp_path / "precious").mkdir()
    state = tmp_path / "state"
    read = json.loads((state / "state.json").read_text())
    (state / "state.json").write_text(
        json.dumps(read | {"layers": [{**read["layers"][0], "folder": folder, "parts": []}]})
    )
    found, notes = grown(state, two_days, key="destination")
    assert_same(found, whole(two_days, "destination"))
    assert ["state.json can't be read" in note for note in notes] == [True]
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("text", ["[]", "7", "{}", '{"made_by": {}, "layers": [{}]}', "[" * 100_000, "\xff"])
def test_another_file_by_the_name_of_a_state(two_days, tmp_path, text):
    (tmp_path / "state" / "state.json").write_text(text, encoding="latin-1")
    found, notes = grown(tmp_path / "state", two_days)
    assert_same(found, whole(two_days))
    assert ["state.json can't be read" in note for note in notes] == [True]


def test_of_two_runs_at_once_the_last_one_leaves_the_state(two_days, tmp_path):
    state = tmp_path / "state"

    class Interrupted(PlainFlow):
        """While its chunks are read from the state, another run replaces it."""

        def _with(self, parcels):
            return Interrupted(parcels)

        def kept(self, what):
            if what == "Reading the state":
                grown(state, two_days[:1], key="destination")
            return self

    found, notes = grown(state, two_days, flow=Interrupted)
    assert_same(found, whole(two_days))
    assert ["leaves none" in note for note in notes] == [True]
    found, notes = grown(state, two_days, key="destination")
    assert_same(found, whole(two_days, "destination"))
    assert notes == []
    assert_clean(state)


def test_a_folder_that_cannot_be_made_is_an_error_before_anything_is_read(two_days, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        grown(tmp_path / "file" / "state", two_days)


def test_a_queue_that_is_parted_later_on_is_looked_into(tmp_path):
    """Each day has one domain of one queue, whose ids are kept in a part of their own."""
    days_ = [day(0)[0].rows, [row._replace(connection_id="d") for row in day(100)[0].rows]]
    paths = joined(written(tmp_path, [[File("csv", rows)] for rows in days_]))
    for run in (1, 2):
        found, notes = grown(tmp_path / "state", paths[:run], sizes=Sizes(chunk_rows=1000, partition_rows=3))
        assert_same(found, whole(paths[:run]))
        assert notes == []
    assert "crosses-connections" in {finding.kind for finding in found.findings}


def test_receipts_keep_a_place_of_their_own(two_days, tmp_path):
    grown(tmp_path / "state", two_days)
    state = StateFolder(tmp_path / "state")
    saved = state.found(find_files(two_days), domain_key("default"), checked_options(US)).layers
    plan, moves = joined_plan([state.load(layer) for layer in saved], chunk_rows=7)
    parcels = list(restored(plan, moves)(iter(state.parts(saved))))
    bodies = [unpack(Body, parcel.payload) for parcel in parcels if parcel.kind == "Body"]
    places = [place for body in bodies for place in zip(body.unit.tolist(), body.unit_row.tolist(), strict=True)]
    assert sorted(places) == [(unit, row) for unit in range(2) for row in range(20)]
    assert {body.chunk: body.received_at_us[0] for body in bodies} == {0: 0, 1: 100, 2: 1, 3: 101}
    assert plan.cut_key_us.tolist() == [-1, 100, -1, 100]


def test_ids_are_dealt_anew_to_more_parts_when_a_log_has_grown_a_lot(tmp_path):
    paths = joined(written(tmp_path, [day(0, 6), day(10, 80), day(100, 80)]))
    for run in range(3):
        named = paths[: run + 1]
        found, notes = grown(tmp_path / "state", named, sizes=Sizes(chunk_rows=9, partition_rows=6))
        assert_same(found, whole(named))
        assert notes == []
    files_ = find_files(paths)
    layers = StateFolder(tmp_path / "state").found(files_, domain_key("default"), checked_options(US)).layers
    parts = [StateFolder(tmp_path / "state").load(layer).plan.partitions for layer in layers]
    assert parts[0] < parts[1] <= parts[2]
