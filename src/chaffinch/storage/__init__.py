"""Storage engine of the broker: logs of record batches, and journals, over one small file system interface (decision 34).

Internal; may change without notice.

All durable state is one of two things: the log of a partition (`partition_log.py`, and `readable_log.py` for readers), or a journal of
keyed records (topics, configurations, offsets, transactions). Recovery cuts a torn end; it refuses damage anywhere else by name. The
journal `contents` records how far each log and journal goes, so that a missing file is refused too. A change that takes several disk
operations is first decided by one name (`log.state`, `<offset>.start`); the next start completes what a crash interrupted.

Only `file_system.py` and the files below it touch the disk: `disk_file.py`, `disk_reads.py`, `disk_lock.py`, `syncfs.py`, and
`background_io.py` with a thread of its own.
"""
