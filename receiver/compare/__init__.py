"""A log through the rules of several systems, side by side.

| file | what is in it |
|---|---|
| `compiled_policies.py` | the rules of `receiver.policies` once more, compiled, over a domain's columns; what ids say, as columns of numbers |
| `disputes.py` | why a policy misses a duplicate, and the receipts on which policies differ |
| `engine.py` | the comparison itself, and every receipt with all verdicts as rows for a table |

Here is what a comparison shows, as values: tables, pages and JSON are made from these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver.policies.interface import Cause

if TYPE_CHECKING:
    from receiver.simulate.figures import Finding, LogFigures, Recommendation

__all__ = ["Cause", "ComparedDomain", "Comparison", "Dispute", "PolicyFigures"]


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """One policy over all domains of a log."""

    policy: str
    """Its text, as given."""
    caught: int
    missed: int
    false_duplicates: int
    """Receipts called duplicate whose id never came before in the domain."""
    peak_ids: int
    memory_bytes: int
    missed_causes: dict[Cause, int]
    false_causes: dict[Cause, int]
    is_fitted: bool = False
    """Whether its size is what this log needs, with the margin; a vendor's default may be as much."""


@dataclass(frozen=True, slots=True)
class ComparedDomain:
    """One domain, such as one address of a broker, whose cache is sized by itself; per policy in their order."""

    domain: str
    receipts: int
    duplicates: int
    caught: tuple[int, ...]
    false_duplicates: tuple[int, ...]
    peak_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dispute:
    """A receipt on which not all policies say the same."""

    row: int
    """The receipt's number in the log, from 0."""
    domain: str
    unique_message_id: str
    message_source_id: str
    received_at_us: int
    """As read, not clamped."""
    is_duplicate: bool
    """Whether the id came before in the domain."""
    earlier_row: int | None
    """The number of the newest earlier receipt of the id in the domain."""
    age_us: int | None
    """Time since that receipt, on the domain's clock."""
    duplicate_by: tuple[bool, ...]
    """Whether each policy, in their order, calls it a duplicate."""
    causes: tuple[Cause | None, ...]
    """Why each policy is wrong; None where it is right."""


@dataclass(frozen=True, slots=True)
class Comparison:
    key: str
    """The KEY that named the domains."""
    log: LogFigures
    policies: tuple[PolicyFigures, ...]
    domains: tuple[ComparedDomain, ...]
    """Ordered by name."""
    disputed: int
    """Receipts on which not all policies say the same."""
    disputes: tuple[Dispute, ...]
    """Some of them, in the order of the log: up to ten, the first for each set of policies that call it a duplicate, then the
    first of all; and every miss of each policy that has no more than ten.
    """
    crossed_domains: int
    """Receipts new in their domain whose id came before in another one: no policy can catch those with this KEY."""
    left_out: tuple[tuple[str, str], ...]
    """Policies that can't judge this log, and why, where all that can were asked for."""
    recommendation: Recommendation | None
    """The recommended two-tier setting, where no policy was named; None where policies were. Its margin is that of the
    fitted policies too."""
    doubts: tuple[Finding, ...]
    """What makes it doubtful that this is the log that was meant, as `simulate` says it; not looked for where policies were
    named."""
