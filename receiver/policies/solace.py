"""Both ways to detect duplicates that Solace recommends to applications."""

from __future__ import annotations

from dataclasses import replace

from receiver.errors import NotComparableError
from receiver.policies.declaration import Cause, Declaration, Misses, Vendor
from receiver.policies.firsts import Entry, FirstReceipts
from receiver.policies.interface import registered
from receiver.policies.perfect import Perfect
from receiver.policies.rgmid import ReplicationGroupMessageId

__all__ = ["SolaceLast", "SolaceLookup"]


@registered(
    replace(
        Perfect.declaration,
        name="solace-lookup",
        kind="solace-lookup",
        order=30,
        vendors=(Vendor(("Solace",), aliases=("solace",)),),
        names_its_system=True,
    )
)
class SolaceLookup(Perfect):
    """Every id is looked up in a database of all that were processed: nothing is missed, nothing forgotten.

    Source: "Detecting Duplicate Messages" in Solace's API developer guide
    (https://docs.solace.com/API/API-Developer-Guide/Detecting-Duplicate-Mess.htm). Where we differ: any text will do for
    an id, and is compared as exact text, so a replication group message id written in another case is another id.
    """


@registered(
    Declaration(
        name="solace-last",
        kind="solace-last",
        order=40,
        parameters=(),
        vendors=(Vendor(("Solace",), aliases=("solace",)),),
        names_its_system=True,
        records_duplicates=False,
        keeps_ids=False,
        goes_by_send_time=False,
        clock=None,
        misses=Misses(Cause.OTHER_ORIGIN),
        false_cause=Cause.SEQUENCE_GAP,
        memory_bytes_per_id=None,
        twin="last",
        refusals=(),
    )
)
class SolaceLast(FirstReceipts):
    """One replication group message id per endpoint, the newest delivered: what isn't newer is a duplicate.

    Source: the same page. By it, the id of a message's copy on one endpoint is the same throughout a replication group,
    so after a failover to the mate nothing is let through twice; another group, or a dead message queue, gives it another
    id. One of another origin can't be compared and is taken for new: nothing is lost, and what the old origin sends
    again is let through. An id that comes late, behind a newer one, is called a duplicate though it never came before:
    the rule wants ids in order, as an endpoint delivers them to one consumer. Where we differ: an endpoint is a domain
    here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: ReplicationGroupMessageId | None = None
        self._entry: Entry = ()

    @property
    def remembered_ids(self) -> int:
        return int(self._last is not None)

    def _check_form(self, id_: str) -> None:
        ReplicationGroupMessageId.parse(id_)

    def _found(self, id_: str) -> Entry | None:
        if self._last is None:
            return None
        try:
            is_newer = ReplicationGroupMessageId.parse(id_).compare(self._last) > 0
        except NotComparableError:
            return None
        return None if is_newer else self._entry

    def _remember(self, id_: str, now_us: int, mark: int | None) -> None:
        del mark
        self._forgotten.extend(self._entry[:1])
        self._last = ReplicationGroupMessageId.parse(id_)
        self._entry = self.serial, now_us

    def entries(self) -> list[int]:
        return list(self._entry[:1])
