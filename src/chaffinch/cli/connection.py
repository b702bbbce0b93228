"""What every sub-command that talks to a cluster has in common: where it is, the file of options, and how it prints.

`--bootstrap-server` and `--command-config` are spelled as in Kafka's own tools. What stands on the command line wins over the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, TypeVar

import typer

from chaffinch import plain_text
from chaffinch.admin import options
from chaffinch.cli import properties
from chaffinch.cli.display import print_error, print_json, print_line
from chaffinch.cli.option_source import SourcedOption, merge_options, validate_options
from chaffinch.cli.usage import StrictApp
from chaffinch.client.addresses import parse_bootstrap_servers
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import ConfigException
from chaffinch.settings import OptionTable, Settings

T = TypeVar("T")

BOOTSTRAP_VARIABLE: Final = "CHAFFINCH_BOOTSTRAP_SERVER"


class _EnvironmentText(str):
    """A text that a variable of the shell gave."""

    __slots__ = ()


def _mark_environment_value(context: typer.Context, parameter: typer.CallbackParam, text: str | None) -> str | None:
    """A callback of typer for an option. The same text may stand in both places, so that it does not tell where it is from."""
    source = context.get_parameter_source(parameter.name or "")
    return _EnvironmentText(text) if text is not None and source is not None and source.name == "ENVIRONMENT" else text


BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        envvar=BOOTSTRAP_VARIABLE,
        callback=_mark_environment_value,
        help="One or more brokers to start from.",
    ),
]
CommandConfig = Annotated[
    str | None, typer.Option("--command-config", metavar="FILE", help="Client options as a Java properties file, named as in Kafka.")
]
AsJson = Annotated[bool, typer.Option("--json", help="For machines: JSON with the fields of docs/cli.md.")]


def new_app(help_text: str) -> typer.Typer:
    """A sub-command with sub-commands of its own."""
    return StrictApp(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, help=help_text)


def merged_options(bootstrap_server: str | None, command_config: str | None, given: Iterable[SourcedOption] = ()) -> list[SourcedOption]:
    """The options of a file, overlaid with those of the command line (None: not given). ConfigException where no broker is named."""
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
    """What these come to, as for `checked_settings`."""
    return checked_settings(table, merged_options(bootstrap_server, command_config, given), parse)


def checked_settings(
    table: OptionTable, entries: Iterable[SourcedOption], parse: Callable[[Mapping[str, Any]], Settings] | None = None
) -> Settings:
    """The settings; those without effect are logged. ConfigException for what is wrong with them, before anybody is asked anything.
    `parse`: by what looks at all of them together, if that is more than the table does."""

    def parse_all(options: Mapping[str, Any]) -> Settings:
        settings = (parse or table.parse)(options)
        parse_bootstrap_servers(settings["bootstrap.servers"])
        return settings

    settings = validate_options(table, entries, parse_all)
    log = plain_text.logger("chaffinch.cli")
    for name in sorted(settings.ignored):
        log.warning("option %s is known to Apache Kafka and without effect here", name)
    return settings


def connect(bootstrap_server: str | None, command_config: str | None) -> SyncClient:
    """A client for administration; use it with `with`."""
    return open_client(parse_settings(options.ADMIN_TABLE, bootstrap_server, command_config))


def open_client(settings: Settings) -> SyncClient:
    """A client with these settings, which says on stderr what takes long."""
    return options.open_client(settings, on_wait=_try_print_error)


def refuse_empty(option: str) -> Callable[[str], str]:
    """A check for an option's text, which a variable of a shell that is not set makes empty. ConfigException then."""

    def check(text: str) -> str:
        if not text:
            raise ConfigException(f"{option} is empty")
        return text

    return check


def print_deleted(names: Iterable[str], *, as_json: bool) -> None:
    """What is gone."""
    if as_json:
        print_json({"deleted": list(names)})
    else:
        for name in names:
            print_line(f"deleted {name}")


def print_separated(found: Sequence[T], print_one: Callable[[T], None]) -> None:
    """Print each of several things, with an empty line between two."""
    for index, each in enumerate(found):
        if index:
            print_line()
        print_one(each)


def warn(text: str) -> None:
    """One line on stderr; the command goes on."""
    _try_print_error(f"warning: {text}")


def _try_print_error(text: str) -> None:
    # Nothing that is done, or under way, ends for want of somebody who hears of it.
    with suppress(OSError):
        print_error(text, flush=True)
