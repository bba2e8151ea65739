"""A folder appears whole or not at all, and replaces nothing."""

import pytest

from receiver.errors import OutputError, SettingsError
from receiver.logs.writer import appearing


def _filled(folder):
    folder.mkdir(exist_ok=True)
    (folder / "theirs").write_text("x")


def _interrupted(folder):
    _filled(folder)
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_appears_when_it_is_done(tmp_path, is_there):
    folder = tmp_path / "out"
    if is_there:
        folder.mkdir()
    with appearing(folder) as unfinished:
        (unfinished / "file").write_text("x")
        assert folder.exists() == is_there
    assert (folder / "file").read_text() == "x"
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_failure_leaves_what_was_there(tmp_path, is_there):
    folder = tmp_path / "out"
    if is_there:
        folder.mkdir()
    with pytest.raises(KeyboardInterrupt), appearing(folder) as unfinished:
        _interrupted(unfinished)
    assert list(tmp_path.rglob("*")) == ([folder] if is_there else [])


@pytest.mark.parametrize("path", ["full", "full/file"])
def test_what_holds_something_is_refused_before_work_begins(tmp_path, path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("precious")
    with pytest.raises(SettingsError, match="isn't empty"), appearing(tmp_path / path):
        pytest.fail("began")
    assert (tmp_path / "full" / "file").read_text() == "precious"
    assert len(list(tmp_path.rglob("*"))) == 2


def test_a_folder_in_no_folder_is_refused(tmp_path):
    with pytest.raises(OutputError, match="No such file"), appearing(tmp_path / "none" / "out"):
        pytest.fail("began")


def test_a_folder_that_is_a_disk_of_its_own_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("pathlib.Path.is_mount", lambda _: True)
    with pytest.raises(SettingsError, match="mounted"), appearing(tmp_path):
        pytest.fail("began")


def test_what_fills_the_place_meanwhile_stays(tmp_path):
    folder = tmp_path / "out"
    with pytest.raises(OutputError, match="not empty"), appearing(folder):
        _filled(folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "theirs"]
