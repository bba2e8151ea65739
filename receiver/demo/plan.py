"""Which processes the demo runs and kills when, which files they leave, and what came of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from receiver.bridge.options import Mode

__all__ = ["BRIDGES", "BROKER", "DOMAIN", "SENDERS", "DemoOutcome", "DemoPlan", "Effects", "Files", "kills"]

SENDERS = ("sender-1", "sender-2", "sender-3")
BRIDGES = ("bridge-1", "bridge-2")
BROKER = "the broker"
DOMAIN = "destination"
"""The domain KEY of both bridges: they share one domain, for what one took before it died comes to the other."""
_SECS_PER_KILL = 3.0
_LEAST_KILLS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    seed: int
    """The kills, and where senders crash, are drawn from it; the rest depends on the machine's timing."""
    secs: int
    """How long senders send."""
    protocol: str
    """`stomp` or `amqp`."""
    mode: Mode
    """The bridges' mode, which is one with an inbox."""


class Files(NamedTuple):
    """The files that the bridges and senders leave, in one folder."""

    folder: Path

    @property
    def target(self) -> Path:
        return self.folder / "orders.jsonl"

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder / 'receiver.db'}"

    @property
    def receipts(self) -> Path:
        """The recordings of both bridges."""
        return self.folder / "receipts"

    def journal(self, sender: str) -> Path:
        return self.folder / f"{sender}.journal"


class Effects(NamedTuple):
    """The messages in a bridge's target, counted one by one."""

    lines: int
    missing: int
    """Expected ids of which there is no line."""
    double: int
    """Lines whose id an earlier line has."""

    @classmethod
    def in_file(cls, path: Path, expected: Collection[str]) -> Effects:
        """Count the messages in a file of JSON Lines, which should hold one for each expected id."""
        lines_by_id: Counter[str] = Counter()
        if path.exists():
            with path.open("rb") as file:
                lines_by_id.update(json.loads(line)["unique_message_id"] for line in file)
        missing = sum(id_ not in lines_by_id for id_ in expected)
        return cls(lines_by_id.total(), missing, lines_by_id.total() - len(lines_by_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    messages: int
    """Messages that the broker has confirmed to their senders."""
    sent: int
    """Messages sent, each counted as often as it was."""
    receipts: int
    redelivered: int
    """Receipts that the broker flagged as JMSRedelivered."""
    duplicates: int
    effects: Effects
    crashes: Counter[str]
    """By what crashed: senders, bridges, the broker. Most were killed from outside by kill -9; all were as sudden."""

    def holds(self, mode: Mode) -> bool:
        """Whether the effects are what bridges of the mode promise."""
        return not self.effects.missing and not (mode.detects and self.effects.double)


class _Kill(NamedTuple):
    at_secs: float
    victim: str


def kills(plan: DemoPlan) -> list[_Kill]:
    """Kills at random times, about evenly spread: of bridges and senders alternately, and of the broker half-way."""
    draw = random.Random(f"{plan.seed} kills")
    number = max(_LEAST_KILLS, round(plan.secs / _SECS_PER_KILL))
    slot_secs = plan.secs / (number + 1)
    victims = [draw.choice(SENDERS if index % 2 else BRIDGES) for index in range(number)]
    victims[number // 2] = BROKER
    return [_Kill((slot + draw.uniform(-0.4, 0.4)) * slot_secs, victim) for slot, victim in enumerate(victims, 1)]
