"""Which policies can be compared, which are when none is named, and what an id costs each."""

from __future__ import annotations

from collections.abc import Sequence

from receiver.errors import SettingsError
from receiver.policies.declaration import Use
from receiver.policies.interface import Policy
from receiver.policies.names import policy, refuse_unfit, unasked
from receiver.settings import CompareSettings

__all__ = ["bytes_per_id", "stated_policies", "vendor_texts"]


def stated_policies(texts: Sequence[str]) -> list[Policy]:
    """The policies that texts name; SettingsError for what `policy` refuses, what can't be compared, and equal texts."""
    policies = [policy(text) for text in texts]
    for place, (text, stated) in enumerate(zip(texts, policies, strict=True)):
        refuse_unfit(type(stated), Use.COMPARISON, text)
        if text in texts[:place]:
            raise SettingsError(f"policy {text!r:.80} is given twice")
    return policies


def vendor_texts() -> list[str]:
    """Every policy at its vendor's defaults."""
    return list(unasked())


def bytes_per_id(policy: Policy, settings: CompareSettings) -> int:
    """What an id costs the policy: as measured, unless settings say otherwise."""
    declared = policy.declaration.memory_bytes_per_id
    if declared is not None and policy.name not in settings.memory_bytes_per_id:
        return declared
    return settings.memory_bytes(policy.name, 1)
