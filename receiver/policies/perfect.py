"""Policies that keep every id for ever: the yardstick, and the look-up in a database that Solace recommends to applications."""

from __future__ import annotations

from dataclasses import replace

from receiver.policies.firsts import KeptIds
from receiver.policies.interface import Declaration, Vendor


@Declaration(
    name="perfect",
    same_rule_as=None,
    kind="perfect",
    order=90,
    parameters=(),
    vendors=(Vendor((), remark="forgets nothing, the yardstick"),),
    names_its_system=False,
    records_duplicates=False,
    goes_by_send_time=False,
    clock=None,
    limit=None,
    misses=None,
    false_cause=None,
    compiled_policy="all",
    refusals=(),
)
class Perfect(KeptIds):
    """Never forgets, so it misses nothing and calls nothing wrongly a duplicate; its memory grows without bound."""

    def __init__(self) -> None:
        super().__init__()


@replace(
    Perfect.declaration,
    name="solace-lookup",
    same_rule_as="perfect",
    kind="solace-lookup",
    order=30,
    vendors=(Vendor(("Solace",), aliases=("solace",)),),
    names_its_system=True,
)
class SolaceLookup(Perfect):
    """Looks every id up in a database of all processed ids: misses nothing, forgets nothing.

    Source: "Detecting Duplicate Messages" in Solace's API developer guide
    (https://docs.solace.com/API/API-Developer-Guide/Detecting-Duplicate-Mess.htm). Where we differ: an id may be any text, and
    is compared as exact text, so a replication group message id written in another case is another id.
    """
