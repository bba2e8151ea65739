"""The messages that brokers send in these tests, by seed: they have a few sources, and repeats."""

import random

Received = tuple[str, str, int]
"""uniqueMessageId, messageSourceId, received_at_us, as `receive_many` takes it."""

SOURCES = 5
AGAIN = 0.2
SHARED = 0.1
NEARBY = 300
SECOND_US = 1_000_000


def stream_of(seed: int, number: int, count: int) -> list[Received]:
    """The receipts of one of several brokers, about 1 ms apart.

    A tenth of the ids belong to messages that every broker has. A fifth of the receipts repeat a recent id, now and
    then from another source.
    """
    chosen = random.Random(f"{seed} {number}")
    receipts: list[Received] = []
    now_us = SECOND_US
    for position in range(count):
        now_us += chosen.randrange(2_000)
        if receipts and chosen.random() < AGAIN:
            id_, source, _ = receipts[-chosen.randint(1, min(NEARBY, position))]
            if chosen.random() < SHARED:
                source = source_of(chosen)
        elif chosen.random() < SHARED:
            id_, source = f"{position}:shared", source_of(chosen)
        else:
            id_, source = f"{position}:{number}", source_of(chosen)
        receipts.append((id_, source, now_us))
    return receipts


def source_of(chosen: random.Random) -> str:
    return f"source-{chosen.randrange(SOURCES)}"
