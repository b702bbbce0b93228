"""The commands that talk to a cluster, against the embedded broker; against Apache Kafka too, where an address is handed over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaffinch import EmbeddedBroker
from tests.cli.commands import CHECKS
from tests.cli.shell import Shell

APACHE_BOOTSTRAP = os.environ.get("CHAFFINCH_APACHE_BOOTSTRAP")


@pytest.fixture(scope="module")
def bootstrap_servers() -> Iterator[str]:
    if APACHE_BOOTSTRAP:
        yield APACHE_BOOTSTRAP
        return
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_commands(check: Callable[[Shell], None], bootstrap_servers: str, tmp_path: Path) -> None:
    """What `commands.CHECKS` says. Names carry the process id: a cluster that is handed over keeps what earlier runs left."""
    check(Shell(bootstrap_servers, tmp_path, f"{check.__name__.replace('_', '-')}-{os.getpid()}"))
