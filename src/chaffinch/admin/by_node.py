"""One question to every node of the cluster: each answers for what it coordinates itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chaffinch.client import answers
from chaffinch.client.sync_client import SyncClient
from chaffinch.protocol.schema import Message


def ask_nodes(client: SyncClient, message: Message) -> Iterator[tuple[int, Any]]:
    """Each node's answer, by node id. One that still loads what it coordinates, as after its start, is asked again.

    Raises the exception of the first code that is final; TimeoutException, with the last code in it, when the client's timeout is over,
    which holds for all nodes together.
    """
    deadline = client.deadline(None, "to every node", message)
    for node in sorted(client.refresh_metadata([]).nodes):
        answer = client.node_request(node, message, timeout_ms=max(1, deadline.left_ms))
        answers.raise_for(answer)
        yield node, answer
