"""Common options of the commands that connect to a cluster (`--bootstrap-server`, `--command-config`, `--json`), and their client.

The options are named as in Kafka's own tools. The command line overrides the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, TypeVar

import typer

from chaffinch import plain_text
from chaffinch.admin import options
from chaffinch.admin.admin import Admin
from chaffinch.cli import properties
from chaffinch.cli.display import print_json, print_line, print_notice
from chaffinch.cli.option_source import SourcedOption, merge_options, validate_options
from chaffinch.cli.usage import StrictApp
from chaffinch.client.addresses import parse_bootstrap_servers
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import ConfigException
from chaffinch.settings import INT_MAX, OptionTable, Settings

T = TypeVar("T")

BOOTSTRAP_VARIABLE: Final = "CHAFFINCH_BOOTSTRAP_SERVER"
TIMEOUT_S_MIN: Final = 0.001
TIMEOUT_S_MAX: Final = INT_MAX // 1000


class _EnvironmentText(str):
    """A value that was read from an environment variable."""

    __slots__ = ()


def _mark_environment_value(context: typer.Context, parameter: typer.CallbackParam, text: str | None) -> str | None:
    """A typer callback: marks a value from the environment, which may equal the one on the command line."""
    source = context.get_parameter_source(parameter.name or "")
    return _EnvironmentText(text) if text is not None and source is not None and source.name == "ENVIRONMENT" else text


BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        envvar=BOOTSTRAP_VARIABLE,
        callback=_mark_environment_value,
        help="One or more brokers to connect to first.",
    ),
]
CommandConfig = Annotated[
    str | None, typer.Option("--command-config", metavar="FILE", help="Client options as a Java properties file, named as in Kafka.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=TIMEOUT_S_MIN,
        max=TIMEOUT_S_MAX,
        help="Give up an operation after this time; default: default.api.timeout.ms, 15 seconds.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, with the fields of docs/reference/cli.md.")]


def new_app(help_text: str) -> typer.Typer:
    """A command with sub-commands."""
    return StrictApp(no_args_is_help=True, help=help_text)


def merged_options(bootstrap_server: str | None, command_config: str | None, given: Iterable[SourcedOption] = ()) -> list[SourcedOption]:
    """Merge the options of a file and of the command line (None: not given). Raises ConfigException if no broker is named."""
    command_line_options = [option for option in given if option.value is not None]
    if bootstrap_server is not None:
        source = BOOTSTRAP_VARIABLE if isinstance(bootstrap_server, _EnvironmentText) else "--bootstrap-server"
        command_line_options.append(SourcedOption("bootstrap.servers", str(bootstrap_server), source))
    entries = merge_options(command_line_options, () if command_config is None else properties.read(command_config, "--command-config"))
    if not any(entry.kafka_name == "bootstrap.servers" and entry.value for entry in entries):
        raise ConfigException(
            f"--bootstrap-server HOST:PORT is missing (or {BOOTSTRAP_VARIABLE}, or bootstrap.servers in --command-config)"
        )
    return entries


def parse_settings(
    table: OptionTable,
    bootstrap_server: str | None,
    command_config: str | None,
    given: Iterable[SourcedOption] = (),
    parse: Callable[[Mapping[str, Any]], Settings] | None = None,
) -> Settings:
    """The settings of these options, as `checked_settings` returns them."""
    return checked_settings(table, merged_options(bootstrap_server, command_config, given), parse)


def checked_settings(
    table: OptionTable, entries: Iterable[SourcedOption], parse: Callable[[Mapping[str, Any]], Settings] | None = None
) -> Settings:
    """Validate the options before anything is sent, and log those without effect. Raises ConfigException for invalid options.

    `parse` validates the options together; default: `table.parse`.
    """

    def parse_all(options: Mapping[str, Any]) -> Settings:
        settings = (parse or table.parse)(options)
        parse_bootstrap_servers(settings["bootstrap.servers"])
        return settings

    settings = validate_options(table, entries, parse_all)
    log = plain_text.logger("chaffinch.cli")
    for name in sorted(settings.ignored):
        log.warning("option %s is known to Apache Kafka and without effect here", name)
    return settings


def timeout_option(timeout: float | None) -> SourcedOption:
    """`--timeout` as an option of the client."""
    return SourcedOption("default.api.timeout.ms", timeout_ms(timeout), "--timeout")


def timeout_ms(timeout: float | None) -> int | None:
    """`--timeout` in ms; None: not given."""
    return None if timeout is None else max(1, round(timeout * 1000))


def connect(bootstrap_server: str | None, command_config: str | None, timeout: float | None) -> Admin:
    """Open an Admin, which reports long waits on stderr; use it in a `with` statement."""
    settings = parse_settings(options.ADMIN_TABLE, bootstrap_server, command_config, [timeout_option(timeout)])
    return Admin._from_settings(settings, on_wait=_try_print)


def open_client(settings: Settings) -> SyncClient:
    """Open a client with these settings. It reports long waits on stderr."""
    return options.open_client(settings, on_wait=_try_print)


def check_known(option: str, given: Iterable[str] | None, known: Iterable[str]) -> None:
    """Raise ConfigException for a word that is not known, in any case."""
    words = list(known)
    for text in given or ():
        if text.lower() not in map(str.lower, words):
            raise ConfigException(f"{option} {text!r}: it must be one of {', '.join(words)}")


def refuse_empty(option: str) -> Callable[[str], str]:
    """A typer callback that raises ConfigException for an empty value, which an unset shell variable gives."""

    def check(text: str) -> str:
        if not text:
            raise ConfigException(f"{option} is empty")
        return text

    return check


def print_deleted(names: Iterable[str], *, as_json: bool) -> None:
    """Print the names of deleted topics or groups."""
    if as_json:
        print_json({"deleted": list(names)})
    else:
        for name in names:
            print_line(f"deleted {name}")


def print_separated(found: Sequence[T], print_one: Callable[[T], None]) -> None:
    """Print each element, with an empty line between two."""
    for index, each in enumerate(found):
        if index:
            print_line()
        print_one(each)


def warn(text: str) -> None:
    """Print a warning to stderr; the command continues."""
    _try_print(f"warning: {text}")


def _try_print(text: str) -> None:
    # A closed stderr must not end a command that works otherwise.
    with suppress(OSError):
        print_notice(text, flush=True)
