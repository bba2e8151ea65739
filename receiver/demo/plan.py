"""Who is in the play and who is killed when, where what they leave is, and what it came to."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from receiver.bridge.options import Mode
from receiver.demo.effects import Effects

__all__ = ["BRIDGES", "BROKER", "DOMAIN", "SENDERS", "Files", "Outcome", "Plan", "kills"]

SENDERS = ("sender-1", "sender-2", "sender-3")
BRIDGES = ("bridge-1", "bridge-2")
BROKER = "the broker"
DOMAIN = "destination"
"""One for both bridges, for what one took before it died comes to the other."""
_SECS_PER_KILL = 3.0
_LEAST_KILLS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    """Who is killed when, and where senders crash, are drawn from it; what else happens is up to the machine."""
    secs: int
    """How long senders send."""
    protocol: str
    """`stomp` or `amqp`."""
    mode: Mode
    """Of the bridges; one with an inbox."""


class Files(NamedTuple):
    """What the bridges leave, in one folder."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    messages: int
    """Confirmed by the broker to their senders."""
    sent: int
    """Those, and what was sent again."""
    receipts: int
    redelivered: int
    """Receipts that the broker flagged as JMSRedelivered."""
    duplicates: int
    effects: Effects
    crashes: Counter[str]
    """Of senders, of bridges, of the broker: most of them by kill -9 from outside, and all of them as sudden."""

    def holds(self, mode: Mode) -> bool:
        """Whether the effects are what bridges of the mode promise."""
        return not self.effects.missing and not (mode.detects and self.effects.double)


class _Kill(NamedTuple):
    at_secs: float
    victim: str


def kills(plan: Plan) -> list[_Kill]:
    """Evenly over the time but for chance; bridges and senders by turns, and half-way the broker."""
    draw = random.Random(f"{plan.seed} kills")
    number = max(_LEAST_KILLS, round(plan.secs / _SECS_PER_KILL))
    slot_secs = plan.secs / (number + 1)
    victims = [draw.choice(SENDERS if place % 2 else BRIDGES) for place in range(number)]
    victims[number // 2] = BROKER
    return [_Kill((place + draw.uniform(-0.4, 0.4)) * slot_secs, victim) for place, victim in enumerate(victims, 1)]
