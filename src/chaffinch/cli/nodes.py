"""`chaffinch nodes`: list, stop and start the declared nodes of a running broker through its control port."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from chaffinch.cli.connection import AsJson, new_app
from chaffinch.cli.control_client import ControlPort, call
from chaffinch.cli.display import print_json, print_table

app = new_app("List, stop and start the declared nodes of a running broker.")

NodeId = Annotated[str, typer.Argument(metavar="ID", help="The node's number.")]


@app.command("list")
def list_command(control: ControlPort, as_json: AsJson = False) -> None:
    """List the nodes: address, state, number of partitions that each leads and is in sync for."""
    _show(call(control, "GET", "/nodes"), as_json=as_json)


@app.command()
def stop(
    node: NodeId,
    control: ControlPort,
    abruptly: Annotated[
        bool, typer.Option("--abruptly", help="Keep the node in the in-sync sets for replica.lag.time.max.ms, as after a crash.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Stop a node: its connections are closed, leaders move, in-sync sets shrink."""
    _show(call(control, "POST", f"/nodes/{quote(node, safe='')}/stop", {"abruptly": abruptly}), as_json=as_json)


@app.command()
def start(node: NodeId, control: ControlPort, as_json: AsJson = False) -> None:
    """Start a stopped node on its old port; it is in sync again."""
    _show(call(control, "POST", f"/nodes/{quote(node, safe='')}/start", {}), as_json=as_json)


def _show(nodes: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(nodes)
    else:
        titles = ("id", "host", "port", "state", "leaders", "in_sync")
        print_table([title.replace("_", " ") for title in titles], [[node[title] for title in titles] for node in nodes])
