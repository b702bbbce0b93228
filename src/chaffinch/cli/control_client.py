"""HTTP client of a broker's control port (`broker/control.py`), for `chaffinch nodes` and `chaffinch faults`."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from chaffinch.broker.http_listener import JSON
from chaffinch.cli.broker import parse_address
from chaffinch.errors import ConfigException
from chaffinch.errors.exceptions import KafkaException

SECONDS_MAX: Final = 10.0
RESPONSE_BYTES_MAX: Final = 16 << 20
LOOPBACK: Final = "127.0.0.1"
CONTROL_VARIABLE: Final = "CHAFFINCH_CONTROL"

ControlPort = Annotated[
    str,
    typer.Option("--control", metavar="HOST:PORT", envvar=CONTROL_VARIABLE, help="The broker's control port, as its --control names it."),
]


class ControlFailed(KafkaException):
    """The control port could not be reached, or the broker refused the request."""


def call(control: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Send a request and return the JSON of the response. Raises ConfigException for status 400, ControlFailed for any other failure."""
    address = parse_address("--control", control)
    host = LOOPBACK if address.host in ("", "*") else address.host
    connection = http.client.HTTPConnection(host, address.port, timeout=SECONDS_MAX)
    try:
        headers = {"Content-Type": JSON}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        status, data = response.status, response.read(RESPONSE_BYTES_MAX)
        value = json.loads(data)
        if status == http.client.OK:
            return value
        error = str(value["error"])
    except OSError as failure:
        raise ControlFailed(f"no control port responds at {control}: {failure.strerror or failure}") from None
    except (http.client.HTTPException, ValueError, KeyError, TypeError):
        raise ControlFailed(f"the server at {control} is not the control port of a Chaffinch broker") from None
    finally:
        connection.close()
    raise ConfigException(error) if status == http.client.BAD_REQUEST else ControlFailed(error)
