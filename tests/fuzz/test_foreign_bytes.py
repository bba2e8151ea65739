"""Whatever bytes come, a reader reads them or says what is wrong. `python -m tests.fuzz` searches for hours."""

import random

import pytest

from tests.fuzz.readers import READERS, read

CHANGED = {"quick": 60, "small": 600, "long": 20_000}
"""How many seeds are changed at random."""
FOUND = {
    "parquet": [
        # The name of a column isn't UTF-8.
        READERS["parquet"][1][0].replace(b"body_digest", b"body\x97digest"),
        # A column may have no nulls, and yet counts them. Arrow's exception then ended the process.
        READERS["parquet"][1][0].replace(b"\x25\x02\x18\x0bdestination", b"\x25\0\x18\x0bdestination"),
    ],
    "amqp": [
        # Its annotations are a list.
        b"\0Sp\xc0\x02\x01A\0Sr\xc0\x05\x01\xa0\x02id\0Sw\xa1\x04text",
        # Its time to live is a text.
        b"\0Sp\xc0\x08\x03AP\x04\xa1\x02no\0Sw\xa1\x04text",
        # Its priority is below 0.
        b"\0Sp\xd0\0\0\0\t\0\0\0\x02\xa1\x01\x01U\xc8",
    ],
    "settings": [b"? [a]\n: 1\n"],
}
"""Bytes by which a fuzzer has shown a fault."""


def changed(draw, seeds):
    """A seed with a few of its bytes changed, doubled, left out or moved."""
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.choice([1, 1, 2, 4, 8])):
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.choice([1, 1, 2, 4, 16, 64]))
        what = draw.choice(["byte", "drop", "double", "insert", "cut"])
        if what == "byte" and at < len(data):
            data[at] = draw.choice([0, 10, 34, 58, 127, 128, 255, draw.randrange(256)])
        elif what == "drop":
            del data[at:end]
        elif what == "double":
            data[at:at] = data[at:end]
        elif what == "insert":
            data[at:at] = draw.choice([b"\0", b"\n", b'"', b"\xff", b"\xed\xa0\x80", b"9" * 20, b"\\x"])
        elif draw.random() < 1 / 4:
            del data[at:]
    return bytes(data)


@pytest.mark.scaled
@pytest.mark.parametrize("name", READERS)
def test_changed_at_random(name, seed, request):
    draw = random.Random(f"{name} {seed}")
    seeds = READERS[name][1]
    for _ in range(CHANGED[request.config.getoption("--campaign")]):
        data = changed(draw, seeds)
        try:
            read(name, data)
        except BaseException:
            print(f"bytes: {data!r}")
            raise


@pytest.mark.parametrize("name", FOUND)
def test_found_by_a_fuzzer(name):
    for data in FOUND[name]:
        read(name, data)
