"""Where a query's files lie: checkpoint, default file systems, and a staging folder that is not shared."""

import errno
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink import paths
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.sink.paths import SinkPaths, probe_file_name, to_pyarrow_location, write_probe_file
from chaffinch.spark.task_facts import TaskContextFacts, facts_of, is_one_machine

FACTS = TaskContextFacts(task=7, query_id="11111111-2222", run_id="r", batch_id=3, master="spark://cluster", host="host-b")
SPARK = {
    "sql.streaming.queryId": "11111111-2222",
    "streaming.sql.batchId": "3",
    "spark.job.description": "\nid = 11111111-2222\nrunId = r\nbatch = 3",
    "spark.master": "spark://cluster",
}


def paths_of(*, is_stream: bool = True, **options: str) -> SinkPaths:
    given = {"kafka.bootstrap.servers": "a:1", "topic": "orders", **options}
    return SinkPaths(SinkOptions.parse(given, is_stream=is_stream), is_stream=is_stream)


def location(folder: Folder | None) -> str:
    assert folder is not None
    return folder.location


def checkpoint_in(folder: Path, query_id: str | None = FACTS.query_id) -> Path:
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query_id}))
    (folder / "offsets" / "3").write_text("v1")
    return folder


@pytest.fixture(autouse=True)
def _nothing_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_probed", set())


class Context:
    """As Spark's, with these local properties."""

    def __init__(self, **properties: str | None) -> None:
        self.properties = {**SPARK, **{name.replace("__", "."): value for name, value in properties.items()}}

    def partitionId(self) -> int:
        return 7

    def getLocalProperty(self, key: str) -> str | None:
        return self.properties.get(key)


class TestFacts:
    @pytest.mark.parametrize(
        ("description", "name"),
        [
            ("my query\nid = 1\nrunId = 2\nbatch = 0", "my query"),
            ("\nid = 1\nrunId = 2\nbatch = 0", None),
            ("id = 1\nrunId = 2\nbatch = 0", None),
            ("something else", None),
            (None, None),
        ],
    )
    def test_query_name(self, description: str | None, name: str | None) -> None:
        assert facts_of(Context(spark__job__description=description)).query_name == name

    @pytest.mark.parametrize(
        ("description", "run_id"),
        [
            ("my query\nid = 1\nrunId = 2\nbatch = 0", "2"),
            ("\nid = 1\nrunId = 2\nbatch = init", "2"),
            ("a\nrunId = 9\nbatch = 7\nid = 1\nrunId = 2\nbatch = 0", "2"),
            ("of my own", None),
            (None, None),
        ],
    )
    def test_run_id_is_the_one_of_spark(self, description: str | None, run_id: str | None) -> None:
        """Not the group of jobs, which the function of a foreachBatch may set to the same in every run."""
        assert facts_of(Context(spark__job__description=description, spark__jobGroup__id="mine")).run_id == run_id

    def test_description_outside_a_stream_is_not_a_name(self) -> None:
        assert facts_of(Context(streaming__sql__batchId=None, spark__job__description="a\nid = 1")).query_name is None

    def test_file_systems_of_the_session(self) -> None:
        facts = facts_of(Context(**{"spark.sql.streaming.checkpointLocation": "/c", "spark.hadoop.fs.defaultFS": "hdfs://n:8020"}))
        assert (facts.checkpoint_root, facts.default_file_system) == ("/c", "hdfs://n:8020")

    @pytest.mark.parametrize("variable", ["SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP"])
    def test_host_is_the_one_of_spark(self, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
        monkeypatch.delenv("SPARK_LOCAL_HOSTNAME", raising=False)
        monkeypatch.setenv(variable, "127.0.0.9")
        assert facts_of(Context()).host == "127.0.0.9"


@pytest.mark.parametrize(
    ("master", "is_one"),
    [("local", True), ("local[2]", True), ("local[*]", True), ("local-cluster[2,1,1024]", False), ("spark://a:1", False), ("yarn", False),
     ("k8s://https://a", False), (None, False)],
)  # fmt: skip
def test_masters_on_one_machine(master: str | None, is_one: bool) -> None:
    assert is_one_machine(master) == is_one
    assert (paths_of().staging(replace(FACTS, master=master), "q") is not None) == is_one


def failing(folder: Folder) -> None:
    raise folder.refusal("cannot be read", OSError(errno.EIO, "Input/output error"))


class TestCheckpoint:
    def test_checkpoint_of_the_query_is_used(self, tmp_path: Path) -> None:
        found = paths_of(checkpointLocation=str(checkpoint_in(tmp_path)))
        assert location(found.checkpoint(FACTS)) == str(tmp_path)
        assert len(found.digest(3, FACTS)) == 64

    @pytest.mark.parametrize("metadata", [None, json.dumps({"id": "another"}), "damaged"])
    def test_folder_of_another_query_is_not_used(self, tmp_path: Path, metadata: str | None, caplog: pytest.LogCaptureFixture) -> None:
        """A path without a scheme may be Hadoop's: the folder of that name on this machine is then another one."""
        if metadata is not None:
            (tmp_path / "metadata").write_text(metadata)
        found = paths_of(checkpointLocation=str(tmp_path))
        assert (found.checkpoint(FACTS), found.digest(3, FACTS)) == (None, "")
        assert "the checkpoint is not used to recognise batches" in caplog.text
        assert str(tmp_path) in caplog.text

    def test_storage_failure_is_not_a_missing_checkpoint(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without it the batch at hand would be judged by its marker alone, and that of a restored copy be skipped with its rows."""
        found = paths_of(checkpointLocation=str(checkpoint_in(tmp_path)))
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "read", lambda self, name: failing(self))
            with pytest.raises(Refusal, match=rf"STORAGE_FAILED: checkpointLocation={tmp_path} cannot be read: .*; start the query again"):
                found.checkpoint(FACTS)
        assert location(found.checkpoint(FACTS)) == str(tmp_path)

    def test_invisible_checkpoint_is_logged_with_possible_causes(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert paths_of(checkpointLocation=f"file:{tmp_path}/other").checkpoint(FACTS) is None
        assert (
            f"checkpointLocation has no metadata file where the sink looks for it, in file:{tmp_path}/other: it is not the "
            "query's checkpoint, or is on a file system that only Hadoop supports"
        ) in caplog.text

    @pytest.mark.parametrize("location", ["floppy:/checkpoints/a", "dbfs:/checkpoints/a"])
    def test_hadoop_file_system_is_not_a_local_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str) -> None:
        monkeypatch.chdir(tmp_path)
        assert paths_of(checkpointLocation=location).checkpoint(FACTS) is None
        assert list(tmp_path.iterdir()) == []

    def test_named_query_below_session_location(self, tmp_path: Path) -> None:
        checkpoint_in(tmp_path / "orders query")
        facts = replace(FACTS, checkpoint_root=str(tmp_path), query_name="orders query")
        found = paths_of()
        assert location(found.checkpoint(facts)) == f"{tmp_path}/orders query"
        assert location(found.staging(facts, "q")) == f"{tmp_path}/orders query/chaffinch/staging/q/3"

    @pytest.mark.parametrize("changes", [{"query_name": None}, {"checkpoint_root": None}, {"query_id": "another"}])
    def test_checkpoint_is_unknown_otherwise(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        checkpoint_in(tmp_path / "orders")
        facts = replace(FACTS, **{"checkpoint_root": str(tmp_path), "query_name": "orders", **changes})
        assert paths_of().checkpoint(facts) is None

    def test_batch_write_inside_a_stream_does_not_use_its_checkpoint(self, tmp_path: Path) -> None:
        checkpoint_in(tmp_path / "orders")
        facts = replace(FACTS, checkpoint_root=str(tmp_path), query_name="orders")
        assert paths_of(is_stream=False).checkpoint(facts) is None


CORE_SITE = """<?xml version="1.0"?>
<configuration><property><name>a</name><value>b</value></property><property><name>fs.defaultFS</name><value>{}</value></property></configuration>
"""


class TestDefaultFileSystem:
    @pytest.mark.parametrize(
        ("location", "default", "found"),
        [
            ("/c", None, "/c"),
            ("/c", "file:///", "/c"),
            ("/c", "hdfs://n:8020", "hdfs://n:8020/c"),
            ("/c", "s3a://bucket/", "s3a://bucket/c"),
            ("file:/c", "hdfs://n:8020", "file:/c"),
            ("s3://b/c", "hdfs://n:8020", "s3://b/c"),
            ("relative", "hdfs://n:8020", "relative"),
        ],
    )
    def test_location_without_scheme_is_on_default_file_system(self, location: str, default: str | None, found: str) -> None:
        assert to_pyarrow_location(location, default, {}) == found

    def test_default_file_system_of_hadoop_configuration(self, tmp_path: Path) -> None:
        (tmp_path / "core-site.xml").write_text(CORE_SITE.format("hdfs://n:8020"))
        assert to_pyarrow_location("/c", None, {"HADOOP_CONF_DIR": str(tmp_path)}) == "hdfs://n:8020/c"
        assert to_pyarrow_location("/c", "file:///", {"HADOOP_CONF_DIR": str(tmp_path)}) == "/c"

    @pytest.mark.parametrize("text", [None, "not XML", "<configuration/>"])
    def test_hadoop_configuration_without_default_file_system(self, tmp_path: Path, text: str | None) -> None:
        if text is not None:
            (tmp_path / "core-site.xml").write_text(text)
        assert to_pyarrow_location("/c", None, {"HADOOP_CONF_DIR": str(tmp_path)}) == "/c"

    def test_checkpoint_and_staging_are_on_default_file_system(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        looked_at = []
        monkeypatch.setattr(Folder, "read", lambda folder, name: looked_at.append((folder.location, name)))
        facts = replace(FACTS, default_file_system="s3a://bucket")
        found = paths_of(checkpointLocation="/c")
        assert found.checkpoint(facts) is None
        assert looked_at == [("s3a://bucket/c", "metadata")]
        assert location(found.staging(facts, "q")) == "s3a://bucket/c/chaffinch/staging/q/3"


class TestNotShared:
    """The same location, seen by a driver and by an executor on another machine: two folders or one."""

    def refused(self, found: SinkPaths, facts: TaskContextFacts = FACTS) -> str:
        with pytest.raises(Refusal) as caught:
            pickle.loads(pickle.dumps(found)).spill(facts, "q")
        return str(caught.value)

    def test_missing_staging_location(self) -> None:
        assert "KAFKA[InvalidConfiguration] STAGING_LOCATION_MISSING: a task has more than 1 MiB" in self.refused(paths_of())

    def test_probe_file_of_the_driver_is_found(self, tmp_path: Path) -> None:
        found = paths_of(stagingLocation=str(tmp_path / "s"))
        write_probe_file(str(tmp_path / "s"))
        assert pickle.loads(pickle.dumps(found)).spill(FACTS, "q").location == f"{tmp_path}/s/q/3"

    def test_probe_file_of_another_machine_is_not_accepted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = paths_of(stagingLocation=str(tmp_path))
        monkeypatch.setattr("socket.gethostname", lambda: "host-b")
        write_probe_file(str(tmp_path))
        text = self.refused(found)
        assert (
            f"KAFKA[InvalidConfiguration] STAGING_NOT_SHARED: stagingLocation={tmp_path} is not shared: task 7 on host-b does not" in text
        )
        assert "name a folder that driver and executors share" in text

    def test_probe_file_is_written_once(self, tmp_path: Path) -> None:
        write_probe_file(str(tmp_path))
        (token,) = tmp_path.iterdir()
        before = token.stat().st_mtime_ns
        paths._probed.clear()
        write_probe_file(str(tmp_path))
        assert [token.stat().st_mtime_ns for token in tmp_path.iterdir()] == [before]

    def test_removed_probe_file_is_written_by_next_planner(self, tmp_path: Path) -> None:
        """A rule of a bucket, or the machine's own of temporary files: a batch of the same process that spills is not refused."""
        found = paths_of(stagingLocation=str(tmp_path))
        for _ in range(2):
            write_probe_file(str(tmp_path))
            assert found.spill(FACTS, "q").location == f"{tmp_path}/q/3"
            (tmp_path / probe_file_name()).unlink()

    def test_local_mode_needs_no_probe_file(self, tmp_path: Path) -> None:
        assert paths_of(stagingLocation=str(tmp_path)).spill(replace(FACTS, master="local[2]"), "q").location == f"{tmp_path}/q/3"

    def test_checkpoint_is_recognized_by_its_metadata_file(self, tmp_path: Path) -> None:
        found = paths_of(checkpointLocation=str(checkpoint_in(tmp_path)))
        assert found.spill(FACTS, "q").location == f"{tmp_path}/chaffinch/staging/q/3"

    def test_checkpoint_invisible_to_executor(self, tmp_path: Path) -> None:
        text = self.refused(paths_of(checkpointLocation=str(tmp_path)))
        assert "task 7 on host-b does not see the checkpoint that Spark writes: checkpointLocation has no metadata file" in text
        assert "set stagingLocation" in text
