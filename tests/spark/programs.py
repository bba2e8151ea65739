"""Programs that use Spark, each as a process of its own."""

import os
import subprocess
import sys

FRAME = """
import sys
from receiver.errors import ReceiverError
from receiver.spark.session import session
{program}

if __name__ == "__main__":
    try:
        with session({master!r}, brief={brief}) as spark:
            work(spark)
    except ReceiverError as error:
        sys.exit(f"{{type(error).__name__}}: {{error}}")
"""


def run_program(program: str, *, master: str = "local[2]", brief: bool = True, **environment: str):
    """Run a program that defines `work(spark)`, with a session made with `brief`. Errors of the package go to
    standard error."""
    text = FRAME.format(program=program, master=master, brief=brief)
    return subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
