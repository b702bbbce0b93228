"""Entry point of the `chaffinch` command: a table of sub-commands, each imported only when it is called.

The start of a broker must not import modules of other sub-commands, and `chaffinch --help` imports none: the table holds their one-line
help. Exit status of every sub-command: 0, 1 (refused or failed), 2 (usage), 130 (Ctrl-C), 143 (SIGTERM).
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TextIO

from chaffinch.cli.display import print_error, print_errors_as_json, print_line
from chaffinch.signals import deferred_signals
from chaffinch.version import VERSION

if TYPE_CHECKING:
    import typer

EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143
STDOUT: Final = "stdout"
COMPLETION_VARIABLE: Final = "_CHAFFINCH_COMPLETE"
"""Set by the completion script of a shell, which calls the command for the completions of a line."""
# Errors of a full file. Files that a command opens are named in the error; an error without a name is about stdout.
DISK_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Command(NamedTuple):
    """A sub-command. `target` is `module:name` of a function with typer annotations or of a `typer.Typer`; `extra` installs its imports."""

    target: str
    help: str
    extra: str = "broker"


COMMANDS: Final[dict[str, Command]] = {
    "broker": Command("chaffinch.cli.broker:broker", "Run a broker that speaks Kafka's protocol."),
    "errors": Command("chaffinch.cli.errors:app", "Explain the error codes of Kafka and Chaffinch."),
    "nodes": Command("chaffinch.cli.nodes:app", "List, stop and start the declared nodes of a running broker."),
    "faults": Command("chaffinch.cli.faults:app", "Add, list and clear injected faults of a running broker."),
    "topics": Command("chaffinch.cli.topics:app", "List, describe, create, alter and delete topics of any Kafka cluster."),
    "groups": Command("chaffinch.cli.groups:app", "List, describe and delete groups; reset their offsets."),
    "transactions": Command("chaffinch.cli.transactions:app", "List and describe transactions; abort hanging ones."),
    "produce": Command("chaffinch.cli.produce:produce", "Write lines, JSON, CSV, Parquet or Arrow to a topic."),
    "consume": Command("chaffinch.cli.consume:consume", "Read a topic as lines, JSON, CSV, Parquet or Arrow."),
    "replay": Command("chaffinch.cli.replay:replay", "Write dead letters of Spark to their topics, exactly once.", extra="spark"),
    "demo": Command("chaffinch.cli.demo:demo", "Show how one bad record fails its batch."),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and raise SystemExit; never returns. `arguments` are those after the program's name, default: `sys.argv`."""
    try:
        if arguments is None:
            _prepare_process()
        _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # During an import; within a sub-command typer exits with the same status.
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


def _prepare_process() -> None:
    """Settings for a process of our own: SIGTERM exits like Ctrl-C and closes open files; log lines begin with the program's name.

    numpy's linear algebra gets no threads: starting them at import takes 60 ms, and as much time of another processor.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    def end(number: int, frame: object) -> NoReturn:
        sys.exit(EXIT_TERMINATED)

    signal.signal(signal.SIGTERM, end)
    if logging.lastResort is not None:  # In a pipe other programs log as well.
        logging.lastResort.setFormatter(logging.Formatter("chaffinch: %(message)s"))
    if sys.stderr is None:
        # Open until the process ends.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        # Otherwise the next opened file or socket would get its descriptor, and the output.
        _exit("stdout is closed: redirect it to /dev/null to discard the output", EXIT_REFUSED)
    if getattr(sys.stdout, "write_through", False):
        # Python runs unbuffered (-u). A line-buffered file behaves the same and keeps what could not be written.
        # Open until the process ends.
        out = open(sys.stdout.fileno(), "w", buffering=1, encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
        sys.stdout = out


def _run(arguments: list[str]) -> None:
    is_completion = COMPLETION_VARIABLE in os.environ
    name = arguments[0] if arguments and arguments[0] in COMMANDS and not is_completion else None
    print_errors_as_json("--json" in arguments[: arguments.index("--") if "--" in arguments else None])
    extra = COMMANDS[name].extra if name else "broker"
    out = sys.stdout  # typer wraps it to hide a closed pipe; Python 3.13 would report that at exit.
    try:
        if name:
            # An exception that a signal raises in a callback of an import is lost; after Ctrl-C in an annotation `python -m` loses the
            # status.
            with deferred_signals():
                command = _command(name)
            status = command(args=arguments[1:], prog_name=f"chaffinch {name}", standalone_mode=False)
        else:
            status = _root_app()(args=arguments or ["--help"], prog_name="chaffinch", standalone_mode=False)
        if status:
            sys.exit(status)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "chaffinch"):
            raise
        _exit(f"{package} is not installed: pip install 'chaffinch[{extra}]'", EXIT_USAGE, error)
    except Exception as error:
        if isinstance(error, OSError) and error.filename in (None, STDOUT):
            _flush(out)  # If stdout is full this exits with its name; the buffered output is dropped.
        _exit(*_message_and_status(error), error)
    finally:
        _flush(out)


def _flush(out: TextIO) -> None:
    """Flush stdout, so that a closed pipe is noticed here and not with a traceback when Python exits."""
    try:
        out.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        if not isinstance(error, BrokenPipeError):
            _exit(f"{STDOUT}: {error.strerror}", EXIT_REFUSED, error)


def _message_and_status(error: Exception) -> tuple[str, int]:
    """The message and the exit status for an error; an unexpected error is raised again."""
    # Imported here: help and start-up do not need the exception classes.
    from chaffinch.cli.usage import is_usage_error, usage_line
    from chaffinch.errors import ConfigException, KafkaException
    from chaffinch.records.errors import RecordsError

    if is_usage_error(error):
        return usage_line(error), EXIT_USAGE
    if isinstance(error, ConfigException):
        return str(error), EXIT_USAGE
    if isinstance(error, KafkaException | RecordsError):
        return str(error), EXIT_REFUSED
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        name = error.filename or (STDOUT if error.errno in DISK_FULL_ERRNOS else "")
        return (f"{name}: {reason}" if name else reason), EXIT_REFUSED
    raise error


def _exit(message: str, status: int, error: Exception | None = None) -> NoReturn:
    """Print the message, unless it is empty, and exit. `error`: the reason, which `--json` names."""
    if message:
        print_error(message, **_error_fields(error))
    sys.exit(status)


def _error_fields(error: Exception | None) -> dict[str, Any]:
    """Name, code and advice of an error, as keywords of `print_error`. The name is that of the code, or else the class."""
    from chaffinch.cli.usage import is_usage_error
    from chaffinch.errors import ApiException

    if not isinstance(error, ApiException):
        return {"name": None if error is None else "UsageError" if is_usage_error(error) else type(error).__name__}
    return {"name": error.name, "code": error.code.number if error.code.is_known else None, "hint": error.advice or None}


def _command(name: str) -> Any:
    """The click command of a sub-command."""
    import typer
    from typer.main import get_command

    command = COMMANDS[name]
    module, _, attribute = command.target.partition(":")
    target = getattr(import_module(module), attribute)
    if isinstance(target, typer.Typer):
        return get_command(target)
    from chaffinch.cli.usage import StrictApp

    app = StrictApp()
    app.command(help=None if target.__doc__ else command.help)(target)
    return get_command(app)


def _root_app() -> typer.Typer:
    """The app for `--help`, `--version`, unknown commands and shell completion. It runs no sub-command, so its functions are empty."""
    import typer

    from chaffinch.cli.usage import StrictApp, StrictGroup

    class Root(StrictGroup):
        """Loads a sub-command when its options or sub-commands are completed."""

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, found, rest = super().resolve_command(ctx, args)
            return name, _command(name) if ctx.resilient_parsing and name in COMMANDS else found, rest

    app = StrictApp(cls=Root, add_completion=True, help="Precise Kafka writes from Python and Spark.")

    def show_version(is_wanted: bool) -> None:
        if is_wanted:
            print_line(f"chaffinch {VERSION}")
            raise typer.Exit

    @app.callback()
    def root(
        version: bool = typer.Option(False, "--version", help="Print the version and exit.", callback=show_version, is_eager=True),
    ) -> None:
        pass

    for name, command in COMMANDS.items():
        app.command(name, help=command.help)(lambda: None)
    return app
