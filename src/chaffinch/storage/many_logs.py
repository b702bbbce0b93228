"""What is done to many logs at once, with one sync of their file system where one of each would take longer.

All logs given together lie on one file system. Where that cannot be synced as a whole, each log is synced by itself: that says which one
is at fault, and lets no error pass that the system tells of only once (`FileSystem.sync_all`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from chaffinch.storage.files import StorageError, run_all, try_sync_all
from chaffinch.storage.log_files import SYNCS_MAX
from chaffinch.storage.partition_log import PartitionLog


def sync_many(logs: Sequence[PartitionLog]) -> None:
    """As `PartitionLog.sync` of each. Raises StorageError."""
    unsynced = [log for log in logs if not log.is_synced]
    if len(unsynced) > SYNCS_MAX and try_sync_all(unsynced[0].files.file_system):
        for log in unsynced:
            log.note_synced()
    for log in unsynced:
        log.sync()  # Nothing, where that has been done.


def close_many(logs: Sequence[PartitionLog]) -> None:
    """As `PartitionLog.close` of each, of all others too where one fails. Raises StorageError."""
    run_all([lambda: sync_many([log for log in logs if log.files.segments]), *(log.close for log in logs)])


def delete_records_many(offsets: Mapping[PartitionLog, int], steady_ms: int) -> dict[PartitionLog, StorageError]:
    """As `PartitionLog.delete_records_before` of each log up to its offset, with two syncs in all. Returns what failed, and why. Raises
    OffsetOutOfRange."""
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
    """Have done what takes long. A process that is killed after the first name was made leaves it to the next start to delete segments:
    so what the producers in them were is on disk before, as in `PartitionLog._advance_start`. Raises StorageError: then call it again.
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
