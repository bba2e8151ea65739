"""Two-tier duplicate detection for receivers of at-least-once messages."""

from typing import TYPE_CHECKING, Any

from receiver.detector import TwoTierDetector
from receiver.message import Decision, Receipt, Tier, Verdict
from receiver.settings import ReceiverSettings, Recording, StoreSettings

if TYPE_CHECKING:
    from receiver.durable.async_batch import AsyncBatch
    from receiver.durable.async_receiver import AsyncReceiver
    from receiver.durable.batch import Batch
    from receiver.durable.duplicates import Duplicate
    from receiver.durable.receiver import Receiver

__all__ = [
    "AsyncBatch",
    "AsyncReceiver",
    "Batch",
    "Decision",
    "Duplicate",
    "Receipt",
    "Receiver",
    "ReceiverSettings",
    "Recording",
    "StoreSettings",
    "Tier",
    "TwoTierDetector",
    "Verdict",
]


def __getattr__(name: str) -> Any:
    # The durable receiver needs SQLAlchemy, for which who only wants the detector shouldn't have to wait.
    if name == "Receiver":
        from receiver.durable.receiver import Receiver

        return Receiver
    if name in {"AsyncBatch", "AsyncReceiver"}:
        from receiver.durable import async_receiver

        return getattr(async_receiver, name)
    if name == "Batch":
        from receiver.durable.batch import Batch

        return Batch
    if name == "Duplicate":
        from receiver.durable.duplicates import Duplicate

        return Duplicate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
