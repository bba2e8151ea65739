"""Two-tier duplicate detection for receivers of at-least-once messages."""

from receiver.message import Decision, Receipt, Tier, Verdict

__all__ = ["Decision", "Receipt", "Tier", "Verdict"]
