"""The format on Spark clusters: `local-cluster`, and a standalone master with two workers.

Run by `make cluster`, in some eight minutes.

Each of the first tests looks at what one scenario of `cluster_driver.py` left, all of them run in one session.
"""

import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.spark.sink.paths import probe_file_name
from tests.spark.clusters.cluster import HOSTS, StandaloneCluster, bare_python, run_driver, site_packages

pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ROOT = Path(__file__).parents[3]
ROWS = 60_000
"""100 bytes and more each: about 3 MB per task, staged in files."""
SPECULATED_ROWS = 400_000
"""Enough for a task to have staged some of them before it has seen the last: it takes them 16 MiB at a time."""

SPECULATION = {
    "spark.speculation": True,
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": 1.1,
    "spark.speculation.quantile": 0.5,
}
STAGED = ("batch", "retried", "executor_killed", "speculated")
SENT = {"batch_direct": "at-least-once", "retried_direct": "at-least-once", "stream_direct": "at-least-once", "batch_none": "none"}
"""Written by tasks, without staging: the guarantee of each."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def writing(broker: EmbeddedBroker, topic: str, staging: Path | str, rows: int = ROWS) -> dict[str, Any]:
    """Arguments of a scenario that writes with staging in files."""
    broker.create_topic(topic, 3, 1, {})
    return {"servers": broker.bootstrap_servers, "topic": topic, "rows": rows, "options": {"stagingLocation": str(staging)}}


def sending(broker: EmbeddedBroker, topic: str, guarantee: str) -> dict[str, Any]:
    """Arguments of a scenario whose tasks send."""
    broker.create_topic(topic, 3, 1, {})
    return {"servers": broker.bootstrap_servers, "topic": topic, "rows": ROWS, "options": {"deliveryGuarantee": guarantee}}


def times_by_row(broker: EmbeddedBroker, topic: str) -> Counter[int]:
    """How often each row is there."""
    return Counter(int(key) for key in broker.read(topic).column("key").to_pylist())


def rows_once(broker: EmbeddedBroker, topic: str, rows: int = ROWS) -> bool:
    """Every row is there, once."""
    return times_by_row(broker, topic) == dict.fromkeys(range(rows), 1)


@pytest.fixture(scope="module")
def found(cluster: StandaloneCluster, broker: EmbeddedBroker) -> dict[str, Any]:
    """All scenarios, with speculation on for all of them."""
    calls = {name: writing(broker, name, cluster.folder / "staging") for name in STAGED}
    calls["speculated"]["rows"] = SPECULATED_ROWS
    calls |= {name: sending(broker, name, guarantee) for name, guarantee in SENT.items()}
    for name in ("stream", "source", "sinks", "supervised"):
        broker.create_topic(name, 3, 1, {})
        calls[name] = {"servers": broker.bootstrap_servers, "topic": name, "rows": ROWS}
    calls["stream"]["options"] = {}
    broker.create_topic("read", 3, 1, {})
    calls["source"]["options"] = {"subscribe": "read", "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS)}
    # A relative path is another folder for each process: that of its own working directory.
    calls["batch_unshared"] = writing(broker, "batch_unshared", "unshared")
    return run_driver(cluster.master, cluster.folder, {"places": {}, **calls}, config=SPECULATION)


class TestStandalone:
    def test_tasks_ran_on_both_hosts(self, found: dict[str, Any]) -> None:
        assert [place["host"] for place in found["places"]] == list(HOSTS)

    @pytest.mark.parametrize("scenario", STAGED)
    def test_each_row_is_written_once(self, found: dict[str, Any], broker: EmbeddedBroker, scenario: str) -> None:
        assert "error" not in (found[scenario] or {}), found[scenario]
        assert rows_once(broker, scenario, SPECULATED_ROWS if scenario == "speculated" else ROWS)

    def test_stream_continues_from_shared_checkpoint(self, found: dict[str, Any], broker: EmbeddedBroker) -> None:
        assert found["stream"] == 1
        assert rows_once(broker, "stream", 2 * ROWS)

    @pytest.mark.parametrize("scenario", SENT)
    def test_at_least_once_write(self, found: dict[str, Any], broker: EmbeddedBroker, scenario: str) -> None:
        """At least once: what attempts that failed had sent, and what copies of slow tasks send, may be there twice."""
        assert "error" not in (found[scenario] if isinstance(found[scenario], dict) else {}), found[scenario]
        count = 2 * ROWS if "stream" in scenario else ROWS
        assert times_by_row(broker, scenario).keys() == set(range(count))

    def test_stream_from_topic_to_topic(self, found: dict[str, Any], broker: EmbeddedBroker) -> None:
        *first, last = found["source"]
        assert (sum(first), last) == (ROWS, 1000)
        assert rows_once(broker, "source", ROWS + 1000)

    def test_sink_in_foreach_batch(self, found: dict[str, Any], broker: EmbeddedBroker) -> None:
        assert found["sinks"] is None
        assert rows_once(broker, "sinks", 2 * ROWS)

    def test_supervised_query_is_restarted(self, found: dict[str, Any], broker: EmbeddedBroker) -> None:
        assert found["supervised"] == {"restarts": ["REQUEST_TIMED_OUT"], "batch": 0}
        assert rows_once(broker, "supervised")

    def test_killed_process_was_an_executor(self, found: dict[str, Any]) -> None:
        assert "CoarseGrainedExecutorBackend" in found["executor_killed"]["command"]

    def test_speculative_copy_on_other_host_staged_same_rows(self, found: dict[str, Any]) -> None:
        assert {found["speculated"]["first"], found["speculated"]["copy"]} == set(HOSTS)
        assert found["speculated"]["files"] == 2

    def test_unshared_staging_folder_is_refused(self, found: dict[str, Any], broker: EmbeddedBroker, cluster: StandaloneCluster) -> None:
        text = found["batch_unshared"]["error"]
        assert "KAFKA[InvalidConfiguration] STAGING_NOT_SHARED" in text
        assert "stagingLocation=unshared is not shared: task 0 on 127.0.0." in text
        assert f"the file {probe_file_name()} that the driver has written there" in text
        assert broker.read("batch_unshared").num_rows == 0


class TestShipping:
    """Workers whose Python lacks Chaffinch; it reaches them as docs/how-to/spark-cluster.md says."""

    def shipped(
        self,
        cluster: StandaloneCluster,
        broker: EmbeddedBroker,
        topic: str,
        config: Mapping[str, object],
        environment: Mapping[str, str],
    ) -> list[str]:
        """Where the workers found it."""
        calls = {"places": {}, "batch": writing(broker, topic, cluster.folder / "staging", rows=20_000)}
        found = run_driver(cluster.master, cluster.folder, calls, config=config, environment=environment)
        assert found["batch"] is None, found["batch"]
        assert rows_once(broker, topic, 20_000)
        assert [place["host"] for place in found["places"]] == list(HOSTS)
        return [place["chaffinch"] for place in found["places"]]

    def test_package_on_shared_path(self, cluster: StandaloneCluster, broker: EmbeddedBroker, tmp_path: Path) -> None:
        source = ROOT / "src"
        environment = {"PYSPARK_PYTHON": str(bare_python(tmp_path / "bare")), "PYTHONPATH": str(source)}
        at = self.shipped(cluster, broker, "by_path", {"spark.executorEnv.PYTHONPATH": source}, environment)
        assert at == [str(source / "chaffinch" / "__init__.py")] * 2

    def test_package_shipped_by_py_files(self, cluster: StandaloneCluster, broker: EmbeddedBroker, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "chaffinch.zip", "w") as packed:
            for package in ("chaffinch", "pyspark_chaffinch"):
                for path in (ROOT / "src" / package).rglob("*.py"):
                    packed.write(path, path.relative_to(ROOT / "src"))
        environment = {"PYSPARK_PYTHON": str(bare_python(tmp_path / "bare"))}
        at = self.shipped(cluster, broker, "by_py_files", {"spark.submit.pyFiles": tmp_path / "chaffinch.zip"}, environment)
        assert all(place.endswith("chaffinch.zip/chaffinch/__init__.py") for place in at), at

    def test_package_shipped_in_packed_environment(self, cluster: StandaloneCluster, broker: EmbeddedBroker, tmp_path: Path) -> None:
        bare_python(tmp_path / "packed")
        for package in ("chaffinch", "pyspark_chaffinch"):
            target = site_packages(tmp_path / "packed") / package
            shutil.copytree(ROOT / "src" / package, target, ignore=shutil.ignore_patterns("__pycache__"))
        with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as packed:
            packed.add(tmp_path / "packed", arcname=".")
        config = {"spark.archives": f"{tmp_path}/environment.tar.gz#environment"}
        at = self.shipped(cluster, broker, "by_archive", config, {"PYSPARK_PYTHON": "./environment/bin/python"})
        assert [cluster.work_of(host) in Path(place).parents for host, place in zip(HOSTS, at, strict=True)] == [True, True], at

    def test_workers_without_package_are_named_before_queries(self, cluster: StandaloneCluster, tmp_path: Path) -> None:
        found = run_driver(cluster.master, cluster.folder, {}, environment={"PYSPARK_PYTHON": str(bare_python(tmp_path / "bare"))})
        text = found["session"]["error"]
        python = f"the worker's Python {tmp_path}/bare/bin/python"
        # One of them, whichever Spark has asked first.
        assert text.startswith(tuple(f"WorkersUnfit: {python} on {host} lacks chaffinch: install it" for host in HOSTS))
        assert "\n" not in text

    def test_missing_python_of_workers_is_reported(self, cluster: StandaloneCluster) -> None:
        text = run_driver(cluster.master, cluster.folder, {}, environment={"PYSPARK_PYTHON": "./environment/bin/python"})["session"][
            "error"
        ]
        assert text.startswith("WorkersUnfit: the workers cannot be used: there is no program ./environment/bin/python on a worker: before")


def test_local_cluster(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Executors in processes of their own, on this machine: staging without a location is refused as on any cluster."""
    calls = {"places": {}, "batch": writing(broker, "local_cluster", tmp_path / "staging")}
    calls["batch_nowhere"] = {**writing(broker, "batch_nowhere", ""), "options": {}}
    found = run_driver("local-cluster[2,1,1024]", tmp_path, calls)
    assert len(found["places"]) == 2
    assert found["batch"] is None, found["batch"]
    assert rows_once(broker, "local_cluster")
    assert "KAFKA[InvalidConfiguration] STAGING_LOCATION_MISSING: task" in found["batch_nowhere"]["error"]
