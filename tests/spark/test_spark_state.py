"""A state outlives the process and the files that it was made of."""

import subprocess
import sys
from pathlib import Path

import pytest

from receiver.domains import domain_key
from receiver.logs import ReadOptions, read_logs
from receiver.report.json_object import json_text
from receiver.simulate.analysis import Question, analyse
from receiver.simulate.ingest import ingest
from receiver.simulate.whole import WholeLog

RUN = """
import sys
from functools import partial
from pathlib import Path
from receiver.chunks.sizing import Sizes, chunked_log
from receiver.chunks.state import StateFolder
from receiver.domains import domain_key
from receiver.logs import ReadOptions, checked_options
from receiver.report.json_object import json_text
from receiver.simulate.analysis import Question, analyse
from receiver.spark.flow import start
from receiver.spark.session import session

state = StateFolder(Path(sys.argv[1]))
with session("local[2]") as spark:
    log = chunked_log(
        state.find_files(sys.argv[2:]),
        checked_options(ReadOptions()),
        domain_key("default"),
        start=partial(start, spark),
        cores=2,
        sizes=Sizes(chunk_rows=700, partition_rows=500),
        state=state,
        note=partial(print, file=sys.stderr),
    )
    print(json_text(analyse(log, Question("default"))))
"""


def run(folder: Path, *paths: str) -> tuple[str, str]:
    ended = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), *paths], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip(), ended.stderr


def write_day(path: Path, day: int) -> str:
    head = "received_at,unique_message_id,message_source_id,connection_id,destination\n"
    rows = (
        f"{1_700_000_000 + 86_400 * day + number},id{(number * 37 + day) % 1900},s{number % 5},c{number % 2},q{number % 3}"
        for number in range(2000)
    )
    path.write_text(head + "\n".join(rows) + "\n")
    return str(path)


@pytest.mark.slow
def test_a_second_process_goes_on_from_where_the_first_one_ended(tmp_path):
    first, second = (write_day(tmp_path / f"day{day}.csv", day) for day in range(2))
    expected = [
        json_text(
            analyse(WholeLog(ingest(read_logs(paths, ReadOptions()), domain_key("default"))), Question("default"))
        )
        for paths in ([first], [first, second])
    ]
    assert run(tmp_path / "state", first) == (expected[0].strip(), "")
    Path(first).unlink()
    printed, notes = run(tmp_path / "state", str(tmp_path / "day*.csv"))
    assert printed == expected[1].strip()
    assert "1 file is gone" in notes
