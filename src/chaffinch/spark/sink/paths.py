"""Paths of a query's files: its staging folder, its checkpoint, and the checkpoint's record of a batch. No other module knows them.

A checkpoint location without a scheme is on Hadoop's default file system, as in Spark. Every other location is for pyarrow: without a
scheme it is a local path.

The driver and all executors must have the same staging folder. So the planner writes a probe file to `stagingLocation`, named after the
driver's machine, and a task that needs the folder looks for it. In a checkpoint, Spark's own file `metadata` serves the same purpose.
Otherwise a folder that is not shared would appear as lost files, which a restart cannot restore.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

from chaffinch import plain_text
from chaffinch.errors.codes import Group
from chaffinch.spark.folders import STORAGE_FAILED, Folder, PrivateFolder, safe_name
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.task_facts import TaskContextFacts, is_one_machine

_log = plain_text.logger(__name__)

_SHARED = "name a folder that driver and executors share, such as one on a network file system or s3://BUCKET/PATH"
_MISSING = (
    "a task has more than 1 MiB for Kafka and neither stagingLocation nor checkpointLocation is set as an option of the query: "
    "set stagingLocation to a folder that driver and executors share"
)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Folders that this process has probed.
_probed: set[str] = set()


class SinkPaths:
    """The paths of one writer; created in the planner, can be pickled. `query`: its id, or the token or name of a batch write."""

    def __init__(self, options: SinkOptions, *, is_stream: bool) -> None:
        self._options = options
        self._is_stream = is_stream
        self._probe_file = probe_file_name()
        self._checkpoints: dict[str | None, Folder | None] = {}

    def staging(self, facts: TaskContextFacts, query: str) -> Folder | None:
        """Staging folder of a batch: in the option's location, in the checkpoint, or in local mode in the temporary folder."""
        options = self._options
        if options.staging_location is not None:
            base = Folder(options.staging_location, "stagingLocation")
        elif options.checkpoint_location is not None:
            base = self._checkpoint_folder(options.checkpoint_location, facts).below("chaffinch", "staging")
        elif (checkpoint := self.checkpoint(facts)) is not None:
            base = checkpoint.below("chaffinch", "staging")
        elif is_one_machine(facts.master):
            return self.temporary(facts, query)
        else:
            return None
        return base.below(safe_name(query), str(facts.batch_id or 0))

    @staticmethod
    def temporary(facts: TaskContextFacts, query: str) -> Folder:
        """A folder on this machine, for files that only processes of this machine read again."""
        base = PrivateFolder(os.path.join(tempfile.gettempdir(), f"chaffinch-staging-{os.getuid()}"), "stagingLocation (temporary folder)")
        return base.below(safe_name(query), str(facts.batch_id or 0))

    def spill(self, facts: TaskContextFacts, query: str) -> Folder:
        """The staging folder for a task that must write a file. Refuses a missing one, and one that is not shared with the driver."""
        folder = self.staging(facts, query)
        if folder is None:
            raise Refusal(Group.INVALID_CONFIGURATION, "STAGING_LOCATION_MISSING", _MISSING)
        if not is_one_machine(facts.master) and (reason := self._not_shared(facts)):
            raise Refusal(Group.INVALID_CONFIGURATION, "STAGING_NOT_SHARED", reason)
        return folder

    def _not_shared(self, facts: TaskContextFacts) -> str | None:
        options, task = self._options, f"task {facts.task} on {facts.host}"
        if options.staging_location is not None:
            folder = Folder(options.staging_location, "stagingLocation")
            if folder.read(self._probe_file) is not None:
                return None
            found = f"stagingLocation={folder.shown} is not shared: {task} does not find the file {self._probe_file}"
            return f"{found} that the driver has written there; {_SHARED}"
        assert options.checkpoint_location is not None, "else it was found by its metadata"
        folder = self._checkpoint_folder(options.checkpoint_location, facts)
        reason = _checkpoint_mismatch(facts.query_id, folder)
        return reason and f"{task} does not see the checkpoint that Spark writes: {reason}; set stagingLocation: {_SHARED}"

    def checkpoint(self, facts: TaskContextFacts) -> Folder | None:
        """The query's checkpoint: from the option, or, for a named query, below the session's checkpoint location.

        None if the sink cannot see it: the folder must contain the query's id, which Spark writes before any batch. Checked once.
        """
        if facts.query_id not in self._checkpoints:
            self._checkpoints[facts.query_id] = self._visible_checkpoint(facts)
        return self._checkpoints[facts.query_id]

    def _visible_checkpoint(self, facts: TaskContextFacts) -> Folder | None:
        if self._options.checkpoint_location is not None:
            folder = self._checkpoint_folder(self._options.checkpoint_location, facts)
        elif self._is_stream and facts.checkpoint_root is not None and facts.query_name is not None:
            folder = Folder(to_pyarrow_location(facts.checkpoint_root, facts.default_file_system), "checkpointLocation").below(
                facts.query_name
            )
        else:
            return None
        try:
            reason = _checkpoint_mismatch(facts.query_id, folder)
        except Refusal as refusal:
            if refusal.name == STORAGE_FAILED:
                raise  # A temporary failure must not look like a missing checkpoint.
            reason = refusal.text
        if reason is not None:
            _log.warning("the checkpoint is not used to recognise batches: %s", reason)
            return None
        return folder

    def state(self, facts: TaskContextFacts) -> Folder | None:
        """The sink's folder in the query's checkpoint; None if the checkpoint is unknown."""
        checkpoint, name = self.checkpoint(facts), self._options.sink_name
        return checkpoint and checkpoint.below("chaffinch", *([] if name is None else [safe_name(name)]))

    @staticmethod
    def _checkpoint_folder(location: str, facts: TaskContextFacts) -> Folder:
        return Folder(to_pyarrow_location(location, facts.default_file_system), "checkpointLocation")

    def digest(self, batch_id: int, facts: TaskContextFacts) -> str:
        """Digest of the checkpoint's record of the batch, its source offsets. Spark writes it once, before the batch runs."""
        checkpoint = self.checkpoint(facts)
        found = checkpoint.below("offsets").read(str(batch_id)) if checkpoint is not None else None
        return "" if found is None else hashlib.sha256(found).hexdigest()


def probe_file_name() -> str:
    """Name of the file that planners of this machine write to a staging folder: one per machine, so that they do not pile up."""
    boot_id = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
    return f".shared-{hashlib.sha256(f'{socket.gethostname()} {boot_id}'.encode()).hexdigest()[:16]}"


def write_probe_file(location: str) -> None:
    """Writes the probe file to a staging folder, which also tests the folder. It is checked at each planning: a cleanup of the folder may
    remove it, and tasks would report that the folder is not shared.
    """
    folder, token = Folder(location, "stagingLocation"), probe_file_name()
    found = None
    with suppress(Refusal):  # The write reports the reason.
        found = folder.read(token)
    if found is None:
        folder.write(token, [b"Written by a driver, so that executors can see that this folder is shared.\n"])


def to_pyarrow_location(location: str, default_file_system: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Converts a Hadoop location for pyarrow: one without a scheme is on Hadoop's default file system, unless that is the local one."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", location) or not location.startswith("/"):
        return location
    default = default_file_system or _hadoop_default_file_system(environment) or "file:///"
    return location if default.startswith("file:") else default.rstrip("/") + location


def _hadoop_default_file_system(environment: Mapping[str, str]) -> str | None:
    """`fs.defaultFS` from Hadoop's configuration files, if there are any."""
    folder = environment.get("HADOOP_CONF_DIR")
    if folder is None:
        return None
    try:
        found = ElementTree.parse(Path(folder) / "core-site.xml")
    except (OSError, ElementTree.ParseError) as error:
        _log.warning("HADOOP_CONF_DIR=%s: its core-site.xml cannot be read: %s", folder, error)
        return None
    values = {row.findtext("name", "").strip(): row.findtext("value", "").strip() for row in found.iter("property")}
    return values.get("fs.defaultFS")


def probe_once(location: str | None, option: str) -> None:
    """Probes a folder once per process: later failures show when it is used."""
    if location is not None and location not in _probed:
        Folder(location, option).probe()
        _probed.add(location)


def _checkpoint_mismatch(query_id: str | None, folder: Folder) -> str | None:
    """Why a folder is not the query's checkpoint, according to its file `metadata`; None if it is."""
    metadata = folder.read("metadata")
    if metadata is None:
        found = f"checkpointLocation has no metadata file where the sink looks for it, in {folder.shown}"
        return f"{found}: it is not the query's checkpoint, or is on a file system that only Hadoop supports"
    try:
        found = json.loads(metadata)["id"]
    except (ValueError, KeyError, TypeError):
        return f"the metadata file in checkpointLocation={folder.shown} is damaged: {metadata[:80]!r}"
    return None if found == query_id else f"checkpointLocation belongs to query {found}, this is query {query_id}: {folder.shown}"
