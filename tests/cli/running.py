"""The command as a process of its own, and its output."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "artemis-receipts.csv.gz"
HEADER = "received_at,unique_message_id,message_source_id,connection_id,destination\n"
LOG = HEADER + "1,a,s,c,q\n2,b,s,c,q\n3,a,s,c,q\n"
RECEIVER = (sys.executable, "-m", "receiver")


class Ran(NamedTuple):
    status: int
    out: str
    err: str


def process(*arguments, stdin: bytes = b"", **environment: str) -> Ran:
    ran = subprocess.run(
        [*RECEIVER, "simulate", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env={**os.environ, **environment},
        check=False,
    )
    return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def at_a_terminal(*arguments, answer: str) -> tuple[int, str]:
    """Run the command at a terminal where a person types an answer. Returns its status and all that the terminal
    shows."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*RECEIVER, *arguments], stdin=theirs, stdout=theirs, stderr=theirs) as command:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        shown = b""
        with suppress(OSError):  # Linux raises it when nobody is at the other end any more
            while more := os.read(ours, 1 << 16):
                shown += more
        os.close(ours)
        return command.wait(timeout=60), shown.decode()


def complaint(ran: Ran) -> str:
    """Check that the command refused, and return its complaint: one line, or two with a hint, on standard error
    alone."""
    assert ran.status == 2, ran
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: ")), ran.err
    return ran.err
