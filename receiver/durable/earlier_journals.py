"""Journals that killed processes of earlier versions left, finished by the numbers that they left in the store.

It goes with `receiver.logs.journal`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from receiver.recording import Recorder
from receiver.store.databases import translated
from receiver.store.log import KeptLog
from receiver.store.tables import DomainState

_LOGGER = logging.getLogger("receiver")


def finish_earlier(recorder: Recorder, log: KeptLog, own: Callable[[DomainState], DomainState], address: str) -> None:
    """Finish the journals of the folder that nobody writes, of stores only those of the log's own domain.

    A failure is a warning only: whoever records to the same path next tries again.
    """
    from receiver.logs.journal import finish_journals, journals_of

    folder = recorder.folder
    if not journals_of(folder.names):
        return
    try:
        with translated(address), folder.locked(recorder.patience_secs):
            state = own(log.begin())  # which waits for a transaction that a dead process has left open
            store_id = state.store_id if state.domain_id else None
            for writer in finish_journals(folder, store_id, log.last_batch):
                log.forget_batches(state, writer)
            log.commit()
    except Exception:
        _LOGGER.warning("can't finish what killed processes have recorded: %s", address, exc_info=True)
    finally:
        log.rollback()
