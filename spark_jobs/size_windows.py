"""`receiver simulate --engine spark`, for a cluster: spark-submit spark_jobs/size_windows.py LOG... [OPTIONS].

Arguments, output and exit status are those of the command. The session is the one that spark-submit configures.
"""

from __future__ import annotations

import sys

from receiver.cli import run
from receiver.spark.session import keep_errors_apart


def main() -> int:
    """Run the command on Spark, even if its options name another engine."""
    keep_errors_apart()
    arguments = sys.argv[1:]
    names_only = arguments.index("--") if "--" in arguments else len(arguments)
    sys.argv[1:] = ["simulate", *arguments[:names_only], "--engine", "spark", *arguments[names_only:]]
    return run()


if __name__ == "__main__":
    sys.exit(main())
