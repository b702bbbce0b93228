"""Where a query's files lie: its staging folder, its checkpoint, and what the checkpoint says of a batch. The only file that knows."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile

from chaffinch.spark.folders import Folder, name_of
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink_options import SinkOptions
from chaffinch.spark.task_facts import TaskContextFacts

_log = logging.getLogger(__name__)

MISSING_STAGING = (
    "a task has more than 1 MiB for Kafka and neither stagingLocation nor checkpointLocation is set as an option of the query: "
    "set stagingLocation to a folder that driver and executors share"
)
# Folders that this process has tried out.
_probed: set[str] = set()


class Places:
    """The places of one writer; picklable. `query`: its id, or the token or name of a batch write."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._checkpoints: dict[str | None, Folder | None] = {}

    def staging(self, facts: TaskContextFacts, query: str) -> Folder | None:
        """Where a batch is staged: what the option says, the checkpoint, or in local mode the temporary folder."""
        options = self._options
        if options.staging_location is not None:
            base = Folder(options.staging_location, "stagingLocation")
        elif options.checkpoint_location is not None:
            base = Folder(options.checkpoint_location, "checkpointLocation").below("chaffinch", "staging")
        elif (facts.master or "").startswith("local"):
            base = Folder(os.path.join(tempfile.gettempdir(), f"chaffinch-staging-{os.getuid()}"), "stagingLocation (temporary folder)")
        else:
            return None
        return base.below(name_of(query), str(facts.batch_id or 0))

    def checkpoint(self, facts: TaskContextFacts) -> Folder | None:
        """The query's checkpoint; None where its location is not an option of the query, or the sink cannot see it.

        A location without a scheme is Hadoop's default file system, which need not be the local one: so the folder must hold what
        Spark has written into it before any batch, the query's id. That is looked at once.
        """
        location = self._options.checkpoint_location
        if location is None:
            return None
        if facts.query_id not in self._checkpoints:
            self._checkpoints[facts.query_id] = _checkpoint_of(facts.query_id, Folder(location, "checkpointLocation"))
        return self._checkpoints[facts.query_id]

    def digest(self, batch_id: int, facts: TaskContextFacts) -> str:
        """Of the checkpoint's own record of the batch: which source offsets it covers. Spark writes it once, before the batch runs."""
        checkpoint = self.checkpoint(facts)
        found = checkpoint.below("offsets").read(str(batch_id)) if checkpoint is not None else None
        return "" if found is None else hashlib.sha256(found).hexdigest()


def probe_once(location: str | None, option: str) -> None:
    """A folder is tried out once per process: later failures show when it is used."""
    if location is not None and location not in _probed:
        Folder(location, option).probe()
        _probed.add(location)


def _checkpoint_of(query_id: str | None, folder: Folder) -> Folder | None:
    try:
        reason = _not_that_of(query_id, folder.read("metadata"))
    except Refusal as refusal:
        reason = refusal.text
    if reason is not None:
        _log.warning("the checkpoint is not used to recognise batches: %s", reason)
        return None
    return folder


def _not_that_of(query_id: str | None, metadata: bytes | None) -> str | None:
    """Why a checkpoint with this file `metadata` is not the query's; None: it is."""
    if metadata is None:
        return "checkpointLocation has no file metadata where the sink looks for it; a file system that only Hadoop knows?"
    try:
        found = json.loads(metadata)["id"]
    except (ValueError, KeyError, TypeError):
        return f"the file metadata in checkpointLocation is damaged: {metadata[:80]!r}"
    return None if found == query_id else f"checkpointLocation belongs to query {found}, this is query {query_id}"
