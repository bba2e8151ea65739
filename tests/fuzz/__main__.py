"""A fuzzer guided by coverage, for as many seconds as wanted: `python -m tests.fuzz NAME SECS` (needs atheris).

If a reader fails, its bytes are in `crash-…` in the current folder. They become a case of `test_foreign_bytes.py`.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["receiver"]):
    from tests.fuzz.readers import READERS, read

name, secs = sys.argv[1:]
with tempfile.TemporaryDirectory() as corpus:
    for number, seed in enumerate(READERS[name][1]):
        (Path(corpus) / f"{number}").write_bytes(seed)
    arguments = [f"-max_total_time={secs}", "-timeout=60", "-rss_limit_mb=4000", "-max_len=4096"]
    atheris.Setup([sys.argv[0], *arguments, corpus], lambda data: read(name, data))
    atheris.Fuzz()
