"""The `chaffinch` command: a table of sub-commands, each loaded only when it is called.

A broker that starts must not pay for what other sub-commands import, and `chaffinch --help` must not pay for any of them: the
table holds their one-line help. Exit status: 0, 1 (refused or failed), 2 (usage), 130 (Ctrl-C), 143 (SIGTERM), as for every
sub-command.
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

from chaffinch.cli.display import print_error, print_line
from chaffinch.signals import deferred_signals
from chaffinch.version import VERSION

if TYPE_CHECKING:
    import typer

EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143
STDOUT: Final = "stdout"
# A file that takes no more: whoever opened it names it in the error, so that one without a name is of stdout, which nobody opened.
DISK_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Command(NamedTuple):
    """`target` is `module:name` of a function with typer annotations or of a `typer.Typer`; `extra` installs what it imports."""

    target: str
    help: str
    extra: str = "broker"


COMMANDS: Final[dict[str, Command]] = {
    "broker": Command("chaffinch.cli.broker:broker", "Run a broker that speaks Kafka's protocol."),
    "errors": Command("chaffinch.cli.errors:app", "Explain the error codes of Kafka and Chaffinch."),
    "nodes": Command("chaffinch.cli.nodes:app", "List, stop and start the declared nodes of a running broker."),
    "faults": Command("chaffinch.cli.faults:app", "Add, list and clear faults on purpose in a running broker."),
    "topics": Command("chaffinch.cli.topics:app", "List, describe, create, alter and delete topics of any Kafka."),
    "groups": Command("chaffinch.cli.groups:app", "List, describe and delete groups; reset their offsets."),
    "transactions": Command("chaffinch.cli.transactions:app", "List and describe transactions; end those that hang."),
    "produce": Command("chaffinch.cli.produce:produce", "Write lines, JSON, CSV, Parquet or Arrow to a topic."),
    "consume": Command("chaffinch.cli.consume:consume", "Read a topic as lines, JSON, CSV, Parquet or Arrow."),
    "replay": Command("chaffinch.cli.replay:replay", "Write dead letters of Spark to their topics again, each once.", extra="spark"),
    "demo": Command("chaffinch.cli.demo:demo", "Show what one bad record does to its batch, and need not do."),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Never returns: ends with SystemExit. `arguments` are those after the program's name."""
    try:
        if arguments is None:
            _prepare_process()
        _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # While something is loaded; within a sub-command typer ends it in the same way.
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


def _prepare_process() -> None:
    """What only a process of our own may do to itself: end by SIGTERM as by Ctrl-C, with what is open closed in order; no threads for
    linear algebra, whose start, when numpy is imported, takes 60 ms and as much of another processor; a name before lines of the log."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    def end(number: int, frame: object) -> NoReturn:
        sys.exit(EXIT_TERMINATED)

    signal.signal(signal.SIGTERM, end)
    if logging.lastResort is not None:  # What is logged is said by this program, too; in a pipe there are others.
        logging.lastResort.setFormatter(logging.Formatter("chaffinch: %(message)s"))
    if sys.stderr is None:
        # For as long as the process lives.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        # Else the next file or socket would take its number, and what is printed would go there.
        _exit("stdout is closed: send it to /dev/null to do without it", EXIT_REFUSED)
    if getattr(sys.stdout, "write_through", False):
        # Python was told to keep nothing back. A buffer that is emptied at each line does as well, and knows what it could not write.
        # For as long as the process lives.
        out = open(sys.stdout.fileno(), "w", buffering=1, encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
        sys.stdout = out


def _run(arguments: list[str]) -> None:
    name = arguments[0] if arguments and arguments[0] in COMMANDS else None
    extra = COMMANDS[name].extra if name else "broker"
    out = sys.stdout  # typer lays one over it that is silent about a reader who went away: Python 3.13 would speak of it at the end.
    try:
        if name:
            # Imports have callbacks, in which what a signal raises is lost; after Ctrl-C in an annotation `python -m` forgets the status.
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
        _exit(f"{package} is not installed: pip install 'chaffinch[{extra}]'", EXIT_USAGE)
    except Exception as error:
        if isinstance(error, OSError) and error.filename in (None, STDOUT):
            _flush(out)  # Where stdout takes no more, this ends with its name; what waited to be printed is left out, and not tried again.
        _exit(*_message_and_status(error))
    finally:
        _flush(out)


def _flush(out: TextIO) -> None:
    """What is still to be printed, so that a reader who went away is noticed here and not, with a traceback, when Python ends."""
    try:
        out.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        if not isinstance(error, BrokenPipeError):
            _exit(f"{STDOUT}: {error.strerror}", EXIT_REFUSED)


def _message_and_status(error: Exception) -> tuple[str, int]:
    """The line and the status that an error ends the command with; one that nobody expects is raised again."""
    # Imported here, not above: help and start-up do not need the class trees.
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


def _exit(message: str, status: int) -> NoReturn:
    if message:
        print_error(message)
    sys.exit(status)


def _command(name: str) -> Any:
    """What typer makes of a sub-command."""
    import typer
    from typer.main import get_command

    command = COMMANDS[name]
    module, _, attribute = command.target.partition(":")
    target = getattr(import_module(module), attribute)
    if isinstance(target, typer.Typer):
        return get_command(target)
    from chaffinch.cli.usage import StrictApp

    app = StrictApp(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=None if target.__doc__ else command.help)(target)
    return get_command(app)


def _root_app() -> typer.Typer:
    """What lists the sub-commands and refuses unknown ones; it runs none, so its commands are empty."""
    import typer

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help="Precise Kafka writes from Python and Spark.")

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
