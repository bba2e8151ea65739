"""A journal in plain words, step by step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from receiver.quantities import SECOND_US, duration
from receiver.testing.world import Acknowledged, Came, Committed, Ended, Event, Message, Paused, Recovered, Struck

_STRUCK = {
    "crash": "The program crashed",
    "loss": "The connection to the database was lost",
    "limit": "The program was stopped",
}
_DONE = {"committed", "acknowledged"}


class _Step(NamedTuple):
    verb: str
    """`came`, perhaps with more words; `committed`; `acknowledged`; or empty, if `text` is the whole sentence."""
    ids: tuple[str, ...] = ()
    text: str = ""


def steps_of(journal: Sequence[Event], labels: dict[str, tuple[int, str]]) -> list[str]:
    """The events, each step a sentence. Messages with the same course share a step."""
    steps = list(_steps(journal, labels))
    sentences: list[str] = []
    while steps:
        turn = _turn(steps)
        alike = list(_alike(steps, turn))
        if len(alike) > 1:
            ids = [id_ for each in alike for id_ in each[0].ids]
            done = ", then ".join(step.verb for step in turn[1:])
            sentences.append(f"{_begun(_named(ids, labels))} {turn[0].verb}, one after another, and each was {done}.")
        else:
            sentences += _sentences(turn, labels)
        del steps[: sum(map(len, alike))]
    return sentences


def _steps(journal: Sequence[Event], labels: dict[str, tuple[int, str]]) -> Iterator[_Step]:  # noqa: C901 - a case for each event
    sources: dict[str, str] = {}
    stood: Counter[str] = Counter()
    acknowledged: set[str] = set()
    is_taking = is_struck = False
    for position, event in enumerate(journal):
        match event:
            case Came(messages):
                is_taking = True
                yield from _came(messages, sources)
            case Acknowledged(messages):
                ids = tuple(message.unique_message_id for message in messages)
                acknowledged.update(ids)
                yield _Step("acknowledged", ids)
            case Committed() if is_taking:  # earlier commits only make tables
                yield _Step("committed")
            case Recovered():
                yield _Step("", text="The program had the broker recover.")
            case Struck(strike, line):
                is_struck = True
                new = _new(journal[position:], stood) if strike.kind == "crash" else []
                standing = [id_ for id_ in new if id_ in labels and id_ not in acknowledged]
                effects = f", and the effect of {_named(standing, labels)} stood" if standing else ""
                at = f"{strike.when} {strike.call}{line and f' ({line})'}"
                yield _Step("", text=f"{_STRUCK[strike.kind]} {at}{effects}.")
            case Paused(secs):
                yield _Step("", text=f"The broker had nothing for {duration(secs * SECOND_US)}.")
            case Ended(error, stands):
                if error:
                    yield _Step("", text=f"The program failed: {error}.")
                elif not is_struck and position + 1 < len(journal):
                    yield _Step("", text="The program returned, and was started again.")
                is_taking = is_struck = False
                stood = stands or stood


def _came(messages: Sequence[Message], sources: dict[str, str]) -> Iterator[_Step]:
    """A step for each group of successive messages that came in the same way."""
    manners = [_manner(message, sources) for message in messages]
    for manner, group in groupby(zip(manners, messages, strict=True), key=lambda pair: pair[0]):
        yield _Step(manner, tuple(message.unique_message_id for _, message in group))


def _new(rest: Sequence[Event], stood: Counter[str]) -> list[str]:
    """The ids of the effects that this run added, by its end."""
    end = next((event for event in rest if isinstance(event, Ended)), None)
    return list((end.stands - stood).keys()) if end and end.stands else []


def _manner(message: Message, sources: dict[str, str]) -> str:
    """How a message came. `sources` has the source of each id when it last came, and is updated."""
    known, source = sources.get(message.unique_message_id), message.message_source_id
    sources[message.unique_message_id] = source
    if known is None:
        return "came"
    if known != source:
        return "came again, sent by another process of the sender"
    return "came again, flagged as redelivered" if message.redelivered else "came again"


def _turn(steps: Sequence[_Step]) -> list[_Step]:
    """The first step, and the program's steps after it, until something else happens."""
    done = itertools.takewhile(lambda step: step.verb in _DONE, steps[1:])
    return [steps[0], *done]


def _alike(steps: Sequence[_Step], turn: list[_Step]) -> Iterator[list[_Step]]:
    """The first turn, and the turns behind it that differ only in their messages, while each acknowledges all of its own."""
    yield turn
    position = len(turn)
    verbs = [step.verb for step in turn]
    while position < len(steps) and _acknowledges_its_own(turn):
        following = _turn(steps[position:])
        if [step.verb for step in following] != verbs or not _acknowledges_its_own(following):
            return
        yield following
        position += len(following)


def _acknowledges_its_own(turn: list[_Step]) -> bool:
    """Whether the program acknowledges in it what came in it, and nothing else."""
    acknowledged = [step.ids for step in turn if step.verb == "acknowledged"]
    return bool(acknowledged) and all(ids == turn[0].ids for ids in acknowledged)


def _sentences(turn: list[_Step], labels: dict[str, tuple[int, str]]) -> Iterator[str]:
    first = turn[0]
    if first.verb not in _DONE:
        yield first.text or f"{_begun(_named(first.ids, labels))} {first.verb}."
        turn = turn[1:]
    done = []
    for (verb, ids), group in groupby(turn, key=lambda step: step[:2]):
        times = len(list(group))
        often = {1: "", 2: " twice"}.get(times, f" {times} times")
        done.append(f"{verb} {_named(ids, labels)}" if ids else f"{verb}{often}")
    if done:
        yield f"The program {', then '.join(done)}."


def _begun(words: str) -> str:
    return words[0].upper() + words[1:]


def _named(ids: Sequence[str], labels: dict[str, tuple[int, str]]) -> str:
    """Messages by number, as in `message 1 of sender A`, `messages 1 to 3 and 7 of sender A and message 1 of sender B`."""
    by_sender: dict[str, set[int]] = {}
    for id_ in ids:
        number, sender = labels[id_]
        by_sender.setdefault(sender, set()).add(number)
    return " and ".join(f"{_numbers(sorted(numbers))} of sender {sender}" for sender, numbers in by_sender.items())


def _numbers(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = " and ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return f"message {shown}" if len(numbers) == 1 else f"messages {shown}"
