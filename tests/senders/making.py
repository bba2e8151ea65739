"""Short functions for makers of keys and ids."""

from sqlalchemy import NullPool, create_engine

from receiver.senders import DedupKeyMaker, SequenceIdMaker
from receiver.settings import StoreSettings

SENDER = "billing"
SOURCE = "gateway:1"


def billing(url: str, *, sender: str = SENDER, patience_secs: float = 10.0) -> DedupKeyMaker:
    return DedupKeyMaker.open(url, sender=sender, store_settings=StoreSettings(lock_timeout_secs=patience_secs))


def gateway(url: str, *, source: str = SOURCE, patience_secs: float = 10.0) -> SequenceIdMaker:
    return SequenceIdMaker.open(
        url, message_source_id=source, store_settings=StoreSettings(lock_timeout_secs=patience_secs)
    )


def application(url: str):
    """An engine of the application."""
    return create_engine(url, poolclass=NullPool)


def pending_keys(url: str) -> dict[str, str]:
    """Reference and key of each unconfirmed message, as another maker sees them."""
    with billing(url) as keys:
        return {pending.reference: pending.key for pending in keys.pending()}


def numbers(ids: list[str]) -> list[int]:
    """The numbers of these ids, which must be of our source."""
    split = [id_.partition(":") for id_ in ids]
    assert {source for _, _, source in split} <= {SOURCE}
    return [int(number) for number, _, _ in split]
