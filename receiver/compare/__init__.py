"""Compares the rules of several systems on one log.

| file | what is in it |
|---|---|
| `compiled_policies.py` | the rules of `receiver.policies` once more, compiled, over a domain's columns; parsed ids as columns of numbers |
| `disputes.py` | why a policy misses a duplicate, and the receipts on which policies differ |
| `engine.py` | the comparison itself, and every receipt with all verdicts as rows of a table |

This module has the values of a comparison, from which tables, pages and JSON are made.
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
    """The figures of one policy over all domains of a log."""

    policy: str
    """The policy's text, as given."""
    caught: int
    missed: int
    false_duplicates: int
    """Receipts called duplicate whose id never came before in the domain."""
    peak_ids: int
    memory_bytes: int
    missed_causes: dict[Cause, int]
    false_causes: dict[Cause, int]
    is_fitted: bool = False
    """Whether its size is this log's need times the margin, even if a vendor's default is equal."""


@dataclass(frozen=True, slots=True)
class ComparedDomain:
    """One domain, such as one address of a broker, which has a cache of its own. Tuples have a value for each policy, in order."""

    domain: str
    receipts: int
    duplicates: int
    caught: tuple[int, ...]
    false_duplicates: tuple[int, ...]
    peak_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dispute:
    """A receipt on which policies disagree."""

    row: int
    """The receipt's number in the log, from 0."""
    domain: str
    unique_message_id: str
    message_source_id: str
    received_at_us: int
    """The time as read, not clamped."""
    is_duplicate: bool
    """Whether the id came before in the domain."""
    earlier_row: int | None
    """The number of the newest earlier receipt of the id in the domain."""
    age_us: int | None
    """Time since that receipt, on the domain's clock."""
    duplicate_by: tuple[bool, ...]
    """Whether each policy, in their order, calls it a duplicate."""
    causes: tuple[Cause | None, ...]
    """Why each policy is wrong; None if it is right."""


@dataclass(frozen=True, slots=True)
class Comparison:
    key: str
    """The KEY that named the domains."""
    log: LogFigures
    policies: tuple[PolicyFigures, ...]
    domains: tuple[ComparedDomain, ...]
    """Ordered by name."""
    disputed: int
    """The number of receipts on which policies disagree."""
    disputes: tuple[Dispute, ...]
    """Some of these receipts, in the order of the log. Up to ten: the first for each set of policies that call it a duplicate,
    then the first of all. Also every miss of each policy that has at most ten.
    """
    crossed_domains: int
    """Receipts that are new in their domain, but whose id came before in another: with this KEY no policy can catch these."""
    left_out: tuple[tuple[str, str], ...]
    """If no policy was named, the policies that can't judge this log, and why."""
    recommendation: Recommendation | None
    """The recommended two-tier setting; None if policies were named. The fitted policies have the same margin."""
    doubts: tuple[Finding, ...]
    """Reasons to doubt that this is the right log, as `simulate` states them; empty if policies were named."""
