"""`chaffinch faults`: fault injection in a running broker through its control port. See `broker/core/fault_script.py`."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from chaffinch.cli.connection import AsJson, new_app
from chaffinch.cli.control_client import ControlPort, call
from chaffinch.cli.display import print_json, print_line, print_table
from chaffinch.cli.topic_names import legal_topic

app = new_app("Add, list and clear injected faults of a running broker.")

TITLES = ("id", "api", "action", "topic", "partition", "client_id", "error", "delay_ms", "bytes_per_second", "direction", "count", "note")

ACTION_PARAMETERS = ("error", "delay_ms", "bytes_per_second", "direction")
"""Fields of a fault that are parameters of its action."""


@app.command("list")
def list_command(control: ControlPort, as_json: AsJson = False) -> None:
    """List the pending faults; `count` is the number of requests that each still affects."""
    _show(call(control, "GET", "/faults"), as_json=as_json)


@app.command()
def add(
    control: ControlPort,
    api: Annotated[str, typer.Option("--api", metavar="NAME", help="Requests of this API, given by its Kafka name or number.")] = "Produce",
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="NAME", callback=legal_topic, help="Only requests that name this topic.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", metavar="N", help="Only requests that name this partition.")] = None,
    client_id: Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Only requests of this client.")] = None,
    action: Annotated[
        str, typer.Option("--action", metavar="ACTION", help="error, drop_before, drop_after, delay or slow_down.")
    ] = "error",
    error: Annotated[
        str | None,
        typer.Option("--error", metavar="NAME", help="For error: Kafka's name or number of the code; default: NOT_LEADER_OR_FOLLOWER."),
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", help="Number of requests that it affects.")] = 1,
    delay_ms: Annotated[int | None, typer.Option("--delay-ms", metavar="MS", help="For delay: delay of the response.")] = None,
    bytes_per_second: Annotated[
        int | None, typer.Option("--bytes-per-second", metavar="N", help="For slow_down: speed of the connection from then on.")
    ] = None,
    direction: Annotated[str | None, typer.Option("--direction", metavar="WHICH", help="For slow_down: answers, requests or both.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add a fault after the existing ones; the first one that matches a request applies."""
    given = {
        "api": api,
        "topic": topic,
        "partition": partition,
        "client_id": client_id,
        "action": action,
        "error": error,
        "count": count,
        "delay_ms": delay_ms,
        "bytes_per_second": bytes_per_second,
        "direction": direction,
    }
    faults = call(control, "POST", "/faults", {name: value for name, value in given.items() if value is not None})
    if not as_json:
        print_line(f"added: {_describe_fault(faults[-1])}")
    _show(faults, as_json=as_json)


@app.command()
def clear(
    control: ControlPort,
    fault: Annotated[str | None, typer.Argument(metavar="ID", help="The fault to clear; default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Clear one fault, or all."""
    _show(call(control, "DELETE", "/faults" if fault is None else f"/faults/{quote(fault, safe='')}"), as_json=as_json)


def _describe_fault(fault: dict[str, Any]) -> str:
    """Describe the complete rule, including defaults."""
    count, topic, partition, client_id = fault["count"], fault.get("topic"), fault.get("partition"), fault.get("client_id")
    requests = f"the next {fault['api']} request" if count == 1 else f"the next {count} {fault['api']} requests"
    client = "of any client" if client_id is None else f"of client {_quoted_if_needed(client_id)}"
    target = "any topic" if topic is None else f"topic {topic}"
    target += ", any partition" if partition is None else f", partition {partition}"
    action = " ".join([fault["action"], *(f"{name}={fault[name]}" for name in ACTION_PARAMETERS if name in fault)])
    note = f"; {fault['note']}" if "note" in fault else ""
    return f"{requests} {client} for {target}: {action.removeprefix('error ')}{note}"


def _quoted_if_needed(text: str) -> str:
    """The text itself, or its repr() if it would be unclear in a line: empty, with surrounding spaces or unprintable characters."""
    return text if text and text == text.strip() and text.isprintable() else repr(text)


def _show(faults: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(faults)
    elif faults:
        titles = [title for title in TITLES if any(title in fault for fault in faults)]
        print_table([title.replace("_", " ") for title in titles], [[fault.get(title) for title in titles] for fault in faults])
    else:
        print_line("no faults")
