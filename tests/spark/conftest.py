"""One Spark session and one broker for all tests that need a Java virtual machine: both take seconds to start."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from chaffinch.broker.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores. Its log goes nowhere: failing queries are part of the tests."""
    from chaffinch.spark import session

    folder = tmp_path_factory.mktemp("spark")
    configuration = folder / "log4j2.properties"
    # Without an appender Spark takes this for no configuration at all, and logs as it likes.
    configuration.write_text(
        "rootLogger.level = off\nrootLogger.appenderRef.none.ref = none\nappender.none.type = Null\nappender.none.name = none\n"
    )
    config = {
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={configuration}",
        "spark.sql.session.timeZone": "UTC",
    }
    if "JAVA_HOME" in os.environ and not os.path.exists(os.environ["JAVA_HOME"]):
        os.environ.pop("JAVA_HOME")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        running = session("chaffinch-tests", master="local[2]", config=config)
        yield running
        running.stop()


@pytest.fixture(scope="session")
def embedded() -> Iterator[EmbeddedBroker]:
    # Records of tests are old; every 300 s a broker looks whether logs are older than a week.
    with EmbeddedBroker(config={"log.retention.ms": -1}) as broker:
        yield broker


@pytest.fixture
def broker(embedded: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    yield embedded
    embedded.faults.clear()


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """A compacted topic of this test alone, four partitions, small records only."""
    name = f"orders-{next(_numbers)}"
    broker.create_topic(name, 4, 1, {"cleanup.policy": "compact", "max.message.bytes": 1000})
    return name


@pytest.fixture
def dead(broker: EmbeddedBroker) -> str:
    name = f"dead-{next(_numbers)}"
    broker.create_topic(name, 1, 1, {})
    return name
