"""One question to every node of the cluster: each answers for what it coordinates itself."""

from __future__ import annotations

from typing import Any

from chaffinch.admin.by_leader import PAUSE_MS, last_code
from chaffinch.client import answers
from chaffinch.client.exchange import Deadline
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import BrokerNotAvailableException
from chaffinch.protocol.schema import Message


def ask_nodes(client: SyncClient, message: Message) -> list[tuple[int, Any]]:
    """Each node's answer, by node id. One that still loads what it coordinates, as after its start, is asked again.

    Where a node leaves the cluster meanwhile, all are asked anew: what it coordinated is with others now, perhaps with one that has
    answered. Raises the exception of the first code that is final; TimeoutException, with the last code in it, when the client's timeout
    is over, which holds for all nodes together.
    """
    deadline = client.deadline(None, "to every node", message)
    while True:
        nodes = sorted(client.refresh_metadata([], timeout_ms=max(1, deadline.left_ms)).nodes)
        try:
            return [(node, _answer(client, node, message, deadline)) for node in nodes]
        except BrokerNotAvailableException as error:
            deadline.note(error)
            if deadline.is_over:
                raise deadline.error(f"the last error was {last_code(error)}") from error
            client.pause(PAUSE_MS, deadline)


def _answer(client: SyncClient, node: int, message: Message, deadline: Deadline) -> Any:
    answer = client.node_request(node, message, timeout_ms=max(1, deadline.left_ms))
    answers.raise_for(answer)
    return answer
