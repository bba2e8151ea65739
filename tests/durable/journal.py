"""How an application acts on its messages, in the batch's transaction: so each effect can be counted.

A turn is one batch. Its number follows the last committed one, so turns are in the order of commits. Two batches that
held the domain at the same time would get the same number.
"""

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, create_engine, func, insert, select

from receiver import Decision, Verdict
from receiver.policies import policy as policy_named
from tests.durable.stream import Received

METADATA = MetaData()
turns = Table(
    "turns",
    METADATA,
    Column("turn", Integer, primary_key=True, autoincrement=False),
    Column("stream", Integer, nullable=False),
    Column("first", Integer, nullable=False),
    Column("verdicts", Text, nullable=False),  # the first letter of each verdict
)
effects = Table(
    "effects",
    METADATA,
    Column("turn", Integer, nullable=False),
    Column("unique_message_id", Text, nullable=False),
)


def make(url: str) -> None:
    """Make the application's tables."""
    engine = create_engine(url)
    METADATA.create_all(engine)
    engine.dispose()


def letters(decisions: Sequence[Decision]) -> str:
    return "".join(decision.verdict[0] for decision in decisions)


def write(
    connection: Connection, stream: int, first: int, receipts: Sequence[Received], decisions: Sequence[Decision]
) -> None:
    """Act on a batch: add one row for the turn, and one for each message delivered."""
    turn = connection.execute(select(func.coalesce(func.max(turns.c.turn), 0) + 1)).scalar_one()
    connection.execute(insert(turns).values(turn=turn, stream=stream, first=first, verdicts=letters(decisions)))
    delivered = [
        {"turn": turn, "unique_message_id": id_}
        for (id_, _, _), decision in zip(receipts, decisions, strict=True)
        if decision.deliver
    ]
    if delivered:
        connection.execute(insert(effects), delivered)


def read(url: str) -> tuple[list[tuple[int, int, str]], dict[int, list[str]]]:
    """All turns in order, as (stream, first, verdicts), and the ids delivered in each."""
    engine = create_engine(url)
    with engine.connect() as connection:
        in_order = connection.execute(select(turns).order_by(turns.c.turn)).all()
        delivered: dict[int, list[str]] = {}
        for turn, id_ in connection.execute(select(effects)):
            delivered.setdefault(turn, []).append(id_)
    engine.dispose()
    assert [turn for turn, *_ in in_order] == list(range(1, len(in_order) + 1))
    return [(stream, first, verdicts) for _, stream, first, verdicts in in_order], delivered


def verify(url: str, streams: dict[int, list[Received]], policy: str, max_sources: int = 0) -> Counter[str]:
    """Compare every verdict with those of one policy in memory that receives in the order of commits. Compare the
    effects with the verdicts.

    With `max_sources`, each turn retires the most silent sources beyond that number. Returns how often each id took
    effect.
    """
    judge = policy_named(policy)
    in_order, delivered = read(url)
    took_effect: Counter[str] = Counter()
    for turn, (stream, first, verdicts) in enumerate(in_order, 1):
        receipts = streams[stream][first : first + len(verdicts)]
        expected = letters(judge.receive_many(receipts))
        assert verdicts == expected, f"turn {turn}: stream {stream} from {first}"
        if max_sources:
            for _, source in judge.sources_by_silence()[:-max_sources]:
                judge.retire(source)
        ids = [id_ for (id_, _, _), letter in zip(receipts, verdicts, strict=True) if letter != Verdict.DUPLICATE[0]]
        assert Counter(delivered.get(turn, [])) == Counter(ids), f"turn {turn}: stream {stream} from {first}"
        took_effect.update(ids)
    return took_effect
