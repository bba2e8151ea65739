"""Two-tier duplicate detection for receivers of at-least-once messages."""

from importlib import import_module
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


_DURABLE = {
    "AsyncBatch": "async_batch",
    "AsyncReceiver": "async_receiver",
    "Batch": "batch",
    "Duplicate": "duplicates",
    "Receiver": "receiver",
}
"""Names and their modules."""


def __getattr__(name: str) -> Any:
    # The durable receiver needs SQLAlchemy, which takes long to import. Programs that only use the detector needn't wait.
    if name not in _DURABLE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"receiver.durable.{_DURABLE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
