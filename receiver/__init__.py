"""Two-tier duplicate detection for receivers of at-least-once messages."""

from receiver.detector import TwoTierDetector
from receiver.message import Decision, Receipt, Tier, Verdict
from receiver.settings import ReceiverSettings

__all__ = ["Decision", "Receipt", "ReceiverSettings", "Tier", "TwoTierDetector", "Verdict"]
