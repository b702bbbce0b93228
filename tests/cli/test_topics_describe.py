"""What `chaffinch topics describe` says where a leader does not give the offsets of its partitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.errors import TimeoutException
from tests.cli.shell import Shell


def test_unknown_offsets_have_reason_and_status_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*_: Any) -> None:
        raise TimeoutException("no broker reachable at 127.0.0.1:1 (refused)", api="ListOffsets")

    monkeypatch.setattr("chaffinch.admin.topics.offsets.earliest", refused)
    with EmbeddedBroker(topics={"a": {"partitions": 2}, "b": {}}) as broker:
        shell = Shell(broker.bootstrap_servers, tmp_path, "")
        for options in ((), ("--json",)):
            ended = shell("topics", "describe", *options)
            assert ended.status == 1
            text = json.loads(ended.err)["error"] if options else ended.err.removeprefix("chaffinch: ")
            assert text.startswith("the offsets of 3 partitions are unknown: ListOffsets")
            assert "no broker reachable at 127.0.0.1:1 (refused)" in ended.err
        assert [topic["partitions"][0]["end_offset"] for topic in ended.json] == [None, None]
