"""A file that others touch, move away and fill; and the lines that are written to it."""

import errno
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from io import FileIO

import pytest

from receiver.bridge.opening import BridgeOptions, Origin, open_bridge
from receiver.bridge.options import Mode
from receiver.bridge.received import Received
from receiver.bridge.targets import file_target
from receiver.bridge.targets.file_target import FileTarget, StandardOutput
from receiver.errors import ClosedError, OutputError, SettingsError
from receiver.store.messages import FIELDS, Message, flat
from tests.bridge.bridged import TEN, Route, open_from, send
from tests.bridge.test_connectors import SOON_SECS
from tests.store.waiting import add, opened_inbox

pytestmark = [pytest.mark.usefixtures("hasty"), pytest.mark.thinned(3)]


def test_what_was_written_and_not_confirmed_is_cut_at_the_restart(route, caplog):
    send(route, "1", "2")
    route.run()
    confirmed = route.file.read_bytes()
    send(route, "3", "4")
    route.run(dies="delivering")
    assert len(route.file.read_bytes()) > len(confirmed)
    with caplog.at_level(logging.INFO):
        route.run()
    assert "that weren't confirmed are cut off" in caplog.text
    assert route.effects() == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    "spoilt",
    [lambda lines: lines[:-1], lambda lines: lines[: len(lines) // 2], lambda lines: lines.replace(b'"2"', b'"x"')],
    ids=["a byte shorter", "half of it", "edited"],
)
def test_a_file_that_is_another_one_is_refused_and_never_cut(route, spoilt):
    send(route, "1", "2")
    route.run()
    lines = route.file.read_bytes()
    other = spoilt(lines) + b"" if len(spoilt(lines)) < len(lines) else spoilt(lines) + b"and more\n"
    route.file.write_bytes(other)
    send(route, "3")
    with pytest.raises(OutputError, match="isn't the file that was written to"):
        route.run()
    assert route.file.read_bytes() == other
    assert (route.waiting(), route.queued) == (0, ["3"])
    route.file.write_bytes(lines)
    route.run()
    assert route.effects() == ["1", "2", "3"]


def test_a_longer_file_in_its_place_is_refused_too(route):
    send(route, "1")
    route.run()
    route.file.rename(route.file.with_suffix(".old"))
    route.file.write_bytes(b"x" * 10_000)
    with pytest.raises(OutputError, match="isn't the file"):
        route.run()
    assert route.file.read_bytes() == b"x" * 10_000


@pytest.mark.parametrize("leave_it_empty", [False, True])
def test_a_file_that_is_moved_away_is_begun_anew(route, leave_it_empty, caplog):
    old = route.file.with_suffix(".1")

    def rotate():
        route.file.rename(old)
        if leave_it_empty:
            route.file.touch()
        send(route, "2", "3")

    send(route, "1")
    route.plan("confirmed", rotate)
    route.run()
    assert route.effects() == ["2", "3"]
    assert json.loads(old.read_text())["body"] == "1"
    assert "writing begins at its start" in caplog.text
    send(route, "4")
    route.run(dies="delivered")
    route.run()
    assert route.effects() == ["2", "3", "4"]


def test_a_new_file_is_known_to_the_store_before_it_is_written_to(tmp_path, store):
    """Otherwise a file that a dead bridge leaves would count as another file."""
    route = Route(store, tmp_path, "file", Mode.APP_CONTROLLED)

    def rotate():
        route.file.unlink()
        send(route, "2", "3")

    send(route, "1")
    route.plan("committed", rotate)
    route.run(dies="delivering", at=2)
    route.run()
    assert route.effects() == ["2", "3"]


def test_a_file_that_is_there_already_is_appended_to_and_its_lines_stay(route):
    route.file.write_text('{"body": "before"}\n')
    send(route, "1")
    route.run(dies="delivering")
    route.run()
    assert route.effects() == ["before", "1"]


def test_a_file_that_ends_in_the_middle_of_a_line_is_refused(route):
    route.file.write_text('{"body": "bef')
    send(route, "1")
    with pytest.raises(OutputError, match="ends in the middle of a line"):
        route.run()
    assert route.file.read_text() == '{"body": "bef'
    assert route.queued == ["1"]


def test_two_domains_of_a_store_never_cut_each_others_lines(tmp_path, store):
    """Each domain would take the other's lines for its own unconfirmed ones."""
    one, other = (Route(store, tmp_path, "file") for _ in range(2))
    send(one, "1")
    one.run()
    with pytest.raises(SettingsError, match="is written for another domain"):
        other.run()
    send(one, "2")
    one.run()
    assert one.effects() == ["1", "2"]


def test_a_file_belongs_to_the_domain_that_writes_to_it_first(tmp_path, store):
    """It doesn't belong to a domain that has only looked at it, for example through a mistyped address."""
    mistyped, one = (Route(store, tmp_path, "file") for _ in range(2))
    for route in (mistyped, one):
        route.run()
    send(one, "1")
    one.run()
    send(mistyped, "2")
    with pytest.raises(SettingsError, match="is written for another domain"):
        mistyped.run()
    assert one.effects() == ["1"]


@pytest.mark.parametrize("mode", [Mode.EXACTLY_ONCE, Mode.APP_CONTROLLED])
def test_what_is_cut_is_kept_aside(tmp_path, store, mode, caplog):
    """A first lease may have died there, or another program may have written there since."""
    route = Route(store, tmp_path, "file", mode)
    route.run()
    route.file.write_bytes(b"theirs\n")
    send(route, "1", "2")
    route.run(dies="delivering")
    half = route.file.read_bytes()
    assert b"theirs" not in half
    with caplog.at_level(logging.INFO):
        route.run()
    aside = [route.file.with_name(f"{route.file.name}.unconfirmed-{number}") for number in (1, 2)]
    assert [moved.read_bytes() for moved in aside] == [b"theirs\n", half]
    warning = f"{len(half)} bytes that weren't confirmed are cut off, and kept in {aside[1]}"
    assert [record.getMessage().endswith(warning) for record in caplog.records].count(True) == 1
    assert route.effects() == ["1", "2"]


def test_what_is_cut_time_and_again_is_kept_aside_once(route):
    """For example, the store's disk is full, so nothing that was written can be confirmed for hours."""
    send(route, "1", "2")
    for _ in range(3):
        route.run(dies="delivered")
    lines, aside = route.file.read_bytes(), route.file.with_name(f"{route.file.name}.unconfirmed-1")
    assert [each.read_bytes() for each in route.file.parent.glob("*.unconfirmed-*")] == [lines]
    aside.write_bytes(lines[:10])  # as if the disk had been full halfway through the copy
    route.run()
    assert [each.read_bytes() for each in route.file.parent.glob("*.unconfirmed-*")] == [lines]
    assert route.effects() == ["1", "2"]


def test_the_store_is_no_target(route, tmp_path):
    with pytest.raises(SettingsError, match="is the store"):
        open_from(route, route._source, f"file:{tmp_path / '.' / 'receiver.db'}")


def test_what_a_full_disk_has_cut_short_is_taken_back(route):
    send(route, "1")
    route.run()
    whole = route.file.read_bytes()
    send(route, "2")
    bridge = route.open()
    target = bridge._target
    append = target._append

    def filling(lines):
        append(lines[:10])
        target._append = append
        seen.append(route.file.read_bytes())
        raise OSError(errno.ENOSPC, "No space left on device")

    seen, target._append = [], filling
    bridge.run(stop_when_idle_secs=0)
    assert seen[0].startswith(whole)
    assert len(seen[0]) == len(whole) + 10
    assert route.effects() == ["1", "2"]
    assert [file.name for file in route.file.parent.glob("orders.jsonl*")] == ["orders.jsonl"]


def test_what_a_full_disk_has_taken_is_not_written_again_in_best_effort(route, monkeypatch):
    room = [0, 0, 1_000, 0, 0, 10_000]
    """Bytes that are free, from each opening of the file on: the first is at the start."""

    class Filling(FileIO):
        def write(self, data):
            if not room[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = super().write(data[: room[0]])
            room[0] -= written
            return written

    def opened(*arguments):
        file = Filling(*arguments)
        del room[0]
        return file

    send(route, *TEN)
    monkeypatch.setattr(file_target, "FileIO", opened)
    route.run(mode=Mode.BEST_EFFORT)
    bodies = re.findall(r'"body":"(.)"}\n', route.file.read_text())
    assert bodies == TEN


def test_a_file_through_a_linked_folder_is_the_same_target(route, caplog):
    real = route.file
    linked = real.parent / "linked"
    linked.symlink_to(real.parent, target_is_directory=True)
    send(route, "1", "2")
    route.run()
    route.file = linked / real.name
    assert FileTarget(route.file).name == FileTarget(real).name
    send(route, "3", "4")
    route.run(dies="delivering")
    route.file = real
    send(route, "5")
    route.run()
    assert route.effects() == ["1", "2", "3", "4", "5"]
    assert "the inbox holds" not in caplog.text


@pytest.mark.parametrize("mode", [Mode.BEST_EFFORT, Mode.EXACTLY_ONCE])
def test_where_no_file_can_be(tmp_path, sqlite_url, mode):
    (tmp_path / "text").write_text("")
    for file, words in {
        "nowhere/orders.jsonl": "no folder",
        "text/orders.jsonl": "no folder",
        "": "is a folder",
        "x" * 300: "too long",
        "a\0b": "no path",
    }.items():
        origin = Origin(lambda: pytest.fail("it connects first"), "c", "queue://orders")
        with pytest.raises((SettingsError, OutputError), match=words):
            open_bridge(origin, f"file:{tmp_path}/{file}", sqlite_url, BridgeOptions(mode=mode)).run()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a disk that is always full")  # noqa: PTH110
def test_a_full_disk_loses_nothing(route, caplog):
    send(route, "1", "2")
    bridge = open_bridge(route.origin, f"file:{route.file}", route.store)
    route.plan("taken", lambda: [route.file.unlink(missing_ok=True), route.file.symlink_to("/dev/full")])

    def stop_once_it_is_said():
        until = time.monotonic() + SOON_SECS
        while "No space left on device" not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)
        bridge.stop()

    threading.Thread(target=stop_once_it_is_said, daemon=True).start()
    bridge.run()
    assert "No space left on device" in caplog.text
    assert (route.waiting(), route.queued, bridge.figures.delivered) == (2, [], 0)
    assert (bridge.figures.connection_errors, bridge.figures.output_errors > 0) == (0, True)
    # The messages wait for this very target, as a bridge to another target is shown.
    caplog.clear()
    open_bridge(route.origin, f"file:{route.file}.2", route.store).run(stop_when_idle_secs=0)
    assert f"the inbox holds 2 messages for file:{route.file}: run a bridge to it" in caplog.text


def test_best_effort_leaves_no_torn_line_before_a_whole_one(tmp_path):
    route = Route("", tmp_path, "file", Mode.BEST_EFFORT)
    route.file.write_text('{"body": "torn')
    send(route, "1")
    route.run()
    torn, line = route.file.read_text().splitlines()
    assert (torn, json.loads(line)["body"]) == ('{"body": "torn', "1")


# Standard output


def test_nobody_who_reads_standard_output_any_more_ends_it(route):
    reading, writing = os.pipe()
    os.close(reading)
    send(route, "1", "2")
    with os.fdopen(writing, "wb", buffering=0) as stream:
        bridge = open_bridge(route.origin, StandardOutput(stream), route.store)
        late = threading.Timer(30, bridge.stop)  # otherwise it might try for ever
        late.start()
        with pytest.raises(ClosedError, match="nobody reads"):
            bridge.run()
        late.cancel()
    assert bridge.figures.delivered == 0
    assert (route.waiting(), route.queued) == (2, [])


class Device:
    """A file in memory that is full the first `times` times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.taken = b""

    def write(self, lines):
        if self.left:
            self.left -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.taken += lines

    def flush(self): ...


def test_standard_output_that_is_full_is_tried_again(route, caplog):
    send(route, "1", "2")
    device = Device(3)
    bridge = open_bridge(route.origin, StandardOutput(device), route.store)
    bridge.run(stop_when_idle_secs=0)
    assert [json.loads(line)["body"] for line in device.taken.splitlines()] == ["1", "2"]
    assert caplog.text.count("can't write to standard output: No space left on device") == 3
    figures = bridge.figures
    assert (figures.delivered, figures.failed, figures.connection_errors, figures.output_errors) == (2, 0, 0, 3)


# The lines of a file


PROPERTIES = {
    "text": "a\nb\u2028\u2029\x00\ud800é😀",
    "true": True,
    "whole": 2**62,
    "part": 0.1,
    "nan": float("nan"),
    "infinite": float("-inf"),
    "bytes": b"\0\xff",
    "none": None,
    "": "",
}


def received(**given) -> Received:
    fields = {"redelivered": True, "jms_timestamp_ms": 5, "message_id": "ID:1", "body": b"", "is_text": True}
    message = Message(**fields | given)
    return Received._make((None, 0, 1_777_629_600_000_001, "1", None, "queue://orders", message))


def test_a_line_is_exact_json_of_one_line_and_ascii():
    line = received(properties=PROPERTIES, body="a\r\n\u2028é\0".encode()).json_line()
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert json.loads(line, parse_constant=pytest.fail) == {
        "unique_message_id": "1",
        "message_source_id": None,
        "received_at": "2026-05-01T10:00:00.000001Z",
        "jms_redelivered": True,
        "destination": "queue://orders",
        "properties": PROPERTIES | {"nan": "nan", "infinite": "-inf", "bytes": {"base64": "AP8="}},
        "body": "a\r\n\u2028é\0",
    }


def test_what_is_no_text_is_in_base64():
    for given in ({"body": b"\xff", "is_text": True}, {"body": b"a", "is_text": False}):
        line = json.loads(received(**given).json_line())
        assert "body" not in line
        assert line["body_base64"] in {"/w==", "YQ=="}


def test_a_line_has_headers_where_there_are_any():
    headers = {"JMSCorrelationID": "order 17", "JMSReplyTo": "queue://answers", "JMSType": "é"}
    assert json.loads(received(headers=headers).json_line())["headers"] == headers
    assert "headers" not in json.loads(received().json_line())


def test_a_message_comes_back_from_the_inbox_as_it_was(store_url):
    sent = received(properties=PROPERTIES, headers={"JMSCorrelationID": "\ud800", "JMSType": ""})._replace(sequence=7)
    with opened_inbox(store_url) as (_, inbox), inbox.lease() as lease:
        add(inbox, lease.connection, [sent])
        (kept,) = lease.messages([7])
    assert repr(Received._make(kept)) == repr(sent)  # repr also shows each value's type


def test_a_message_has_the_fields_of_what_came():
    sent = received()
    assert [getattr(sent, name) for name in FIELDS] == list(flat(sent))


@pytest.mark.slow
def test_the_lines_are_a_log_for_simulate(route):
    send(route, "1", "007", " a\u2028 ")
    route.run()
    command = [sys.executable, "-m", "receiver", "simulate", str(route.file), "--json", "--domain", "destination"]
    ran = subprocess.run(command, capture_output=True, check=True)
    assert json.loads(ran.stdout)["log"]["receipts"] == 3
