"""Folders of Spark processes on an object store: moto's S3, through pyarrow's own driver. Run by `make cluster`, in some seconds.

No Java: planner, tasks and committer are played, each with a writer of its own that has travelled.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.spark.commit.messages import STAGING_LOST
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink.paths import probe_file_name
from tests.interop.processes import Server
from tests.interop.spark_environments import variables
from tests.spark.query_driver import QueryDriver

START_S = 120.0
_AT = "Running on http://"
LARGE = {"key": [f"k{number}" for number in range(200)], "value": [random.Random(number).randbytes(10_000) for number in range(200)]}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What is behind `s3://bucket/FOLDER?` there."""
    log = tmp_path_factory.mktemp("store") / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with Server(command, ready_text=_AT, log=log, timeout_s=START_S, environment=variables("object-store")) as server:
        address = server.ready_line.rpartition(_AT)[2].strip().replace(":", "%3A")
        options = f"endpoint_override={address}&scheme=http&region=us-east-1&allow_bucket_creation=true"
        Folder(f"s3://key:secret@bucket?{options}", "test").opened()[0].create_dir("bucket")
        yield options


@pytest.fixture
def folder(store: str, request: pytest.FixtureRequest) -> Folder:
    """A folder of the test's own."""
    return Folder(f"s3://key:secret@bucket/{request.node.name}?{store}", "stagingLocation")


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": {"partitions": 2, "cleanup.policy": "compact"}}) as running:
        yield running


@pytest.fixture
def query(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Folder) -> Iterator[QueryDriver]:
    played = QueryDriver(
        monkeypatch, broker.bootstrap_servers, tmp_path / "checkpoint", stagingLocation=folder.location,
        errors__tolerance="all", errors__dead__letter__path=folder.below("letters").location,
    )  # fmt: skip
    yield played
    played.close()


def test_object_store_folder_behaves_like_local_folder(folder: Folder) -> None:
    assert (folder.names(), folder.read("state")) == ([], None)
    folder.probe()
    for text in (b"one", b"two"):
        folder.write("state", [text])
        assert folder.read("state") == text
    assert folder.names() == ["state"]
    below = folder.below("query", "0")
    below.write("a", [b"1"])
    below.parent().remove_all()
    below.parent().remove_all()
    folder.remove("state")
    folder.remove("state")
    assert folder.names() == []


def test_staging_files_are_written_read_and_removed(broker: EmbeddedBroker, query: QueryDriver, folder: Folder) -> None:
    messages = query.write(LARGE, LARGE)
    staged = {name for message in messages for name in message.outcome.files()}
    assert set(folder.below("q", "0").names()) == staged
    assert len(staged) == 2
    query.commit(messages)
    assert broker.read("orders").num_rows == 400
    assert set(folder.names()) == {probe_file_name(), "letters"}


def test_dead_letter_parquet_files_are_written(query: QueryDriver, folder: Folder) -> None:
    query.run({"key": ["a", None], "value": [b"1", b"2"]})
    letters = folder.below("letters")
    (name,) = letters.names()
    data = letters.read(name)
    assert data is not None
    found = pq.read_table(pa.BufferReader(data))
    assert (found.column("value").to_pylist(), found.column("error_name").to_pylist()) == ([b"2"], ["INVALID_COMPACTION_KEY"])


def test_missing_staging_file_is_reported_and_nothing_written(broker: EmbeddedBroker, query: QueryDriver, folder: Folder) -> None:
    messages = query.write(LARGE)
    folder.below("q").remove_all()
    with pytest.raises(Refusal, match=STAGING_LOST):
        query.commit(messages)
    assert broker.read("orders").num_rows == 0


def test_missing_bucket_is_refused_before_tasks(query: QueryDriver, store: str) -> None:
    location = f"s3://key:secret@nowhere/staging?{store.replace('&allow_bucket_creation=true', '')}"
    with pytest.raises(Refusal, match=r"LOCATION_NOT_USABLE: stagingLocation=s3://\.\.\.@nowhere/.* cannot be written: ") as caught:
        query.writer(stagingLocation=location)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
