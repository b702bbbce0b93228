"""Operations on many logs, with one sync of their file system instead of one for each log.

All logs given together are on one file system. If that cannot be synced as a whole, each log is synced individually. This identifies the
log at fault, and does not miss an error that the system reports only once (`FileSystem.sync_all`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from chaffinch.storage.files import StorageError, run_all, try_sync_all
from chaffinch.storage.log_files import SYNCS_MAX
from chaffinch.storage.partition_log import PartitionLog


def sync_many(logs: Sequence[PartitionLog]) -> None:
    """`PartitionLog.sync` for each log. Raises StorageError."""
    unsynced = [log for log in logs if not log.is_synced]
    if len(unsynced) > SYNCS_MAX and try_sync_all(unsynced[0].files.file_system):
        for log in unsynced:
            log.note_synced()
    for log in unsynced:
        log.sync()  # No-op for logs already synced.


def close_many(logs: Sequence[PartitionLog]) -> None:
    """`PartitionLog.close` for each log, also after a failure of others. Raises StorageError."""
    run_all([lambda: sync_many([log for log in logs if log.files.segments]), *(log.close for log in logs)])


def delete_records_many(offsets: Mapping[PartitionLog, int], steady_ms: int) -> dict[PartitionLog, StorageError]:
    """`PartitionLog.delete_records_before` for each log and its offset, with two syncs in all. Returns the errors by log. Raises
    OffsetOutOfRange.
    """
    if sum(offset > log.log_start_offset or not log.is_synced for log, offset in offsets.items()) > SYNCS_MAX:
        with suppress(StorageError):
            _advance_starts(offsets)
    failed = {}
    for log, offset in offsets.items():
        try:
            log.delete_records_before(offset, steady_ms)
        except StorageError as error:
            failed[log] = error
    return failed


def _advance_starts(offsets: Mapping[PartitionLog, int]) -> None:
    """Do the slow part of moving the starts: sync, create the start files, sync again.

    If the process is killed after the first start file was created, the next start deletes segments. So their producer state is synced
    first, as in `PartitionLog._advance_start`. Raises StorageError: then call it again.
    """
    later = [(log, offset) for log, offset in offsets.items() if log.log_start_offset < offset <= log.high_watermark]
    file_system = next(iter(offsets)).files.file_system
    file_system.sync_all()
    for log in offsets:
        log.note_synced()
        log.files.note_aborted_synced()
    for log, offset in later:
        log.files.create_start_file(offset)
    file_system.sync_all()
    for log, offset in later:
        log.note_start(offset)
