"""Which policies can be compared, and which are when none is named."""

from __future__ import annotations

from collections.abc import Sequence

from receiver.errors import SettingsError
from receiver.policies.apama import ApamaTwoTier
from receiver.policies.cmq import CmqMinimumTimeCache, never_advanced
from receiver.policies.interface import Policy
from receiver.policies.names import policy
from receiver.settings import ReceiverSettings

__all__ = ["stated_policies", "vendor_texts"]


def stated_policies(texts: Sequence[str]) -> list[Policy]:
    """The policies that texts name; SettingsError for what `policy` refuses, what can't be compared, and equal texts."""
    policies = [policy(text) for text in texts]
    for place, (text, stated) in enumerate(zip(texts, policies, strict=True)):
        if isinstance(stated, CmqMinimumTimeCache):
            raise never_advanced(text, "compared", "log")
        if text in texts[:place]:
            raise SettingsError(f"policy {text!r:.80} is given twice")
    return policies


def vendor_texts() -> list[str]:
    """Every policy at its vendor's defaults."""
    return [
        str(ApamaTwoTier(*ReceiverSettings().sizes)),
        str(policy("artemis")),
        "solace-lookup",
        "solace-last",
        # CMQ states no default: 12 hours is as long as a queue lets a message stay unacknowledged. Ways through the
        # network and retries are seconds against that, and what a log shows of them is in its own times.
        "cmq:retention=43200,retry=0,network=0",
        "ttl:expiry=300",  # SQS FIFO
        "ttl:expiry=600",  # Azure Service Bus
        "ttl:expiry=120",  # NATS JetStream
        "sequence",
        "perfect",
    ]
