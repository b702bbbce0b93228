"""The command's entry: lazy, with clear ends. What a sub-command does is tested beside it."""

import json
import re
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chaffinch
from chaffinch.cli import main as cli
from chaffinch.errors import ConfigException, InvalidTopicException, KafkaException

HEAVY = {"numba", "pyarrow", "numpy", "cramjam", "pyspark", "uvloop"}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    captured = capsys.readouterr()
    status = ended.value.code or 0
    assert isinstance(status, int)
    return status, captured.out, captured.err


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_every_sub_command(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (0, "")
    for name, command in cli.COMMANDS.items():
        assert name in out
        assert command.help.rstrip(".") in " ".join(out.split())


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """(words, command) of a command and of its sub-commands."""
    yield name, command
    for each, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{name} {each}")


EVERY_COMMAND = [words for name in cli.COMMANDS for words, _ in commands(cli._command(name), name)]


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_help_shows_every_text_in_full(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = run(capsys, *command.split(), "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"Usage: chaffinch {command} [OPTIONS]")
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    found = dict(commands(cli._command(command.split()[0]), command.split()[0]))[command]
    for parameter in found.params:
        assert " ".join(parameter.help.split()) in words
        assert all(name in words for name in parameter.opts if name.startswith("-"))
    for below in getattr(found, "commands", {}).values():
        assert " ".join(below.help.split()) in words


@pytest.mark.parametrize("command", ["", *EVERY_COMMAND])
def test_help_has_no_types_of_python_and_no_boxes(capsys: pytest.CaptureFixture[str], command: str) -> None:
    _, out, _ = run(capsys, *command.split(), "--help")
    assert not re.search(r"<(int|str|bool|list|float)|x[<>]=|[{}\u2500-\u257f\u2026]|\.\.\.$", out.replace("COMMAND [ARGS]...", ""))


def test_help_names_types_and_ranges_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "topics", "create", "--help")
    assert "--replication-factor INTEGER" in out
    assert "[1 to 32767]" in " ".join(out.split())
    assert "--partitions INTEGER" in out
    assert "[at least 1]" in out


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"chaffinch {chaffinch.__version__}\n", "")


def test_unknown_sub_command_offers_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "brokr")
    assert (status, out) == (2, "")
    assert "brokr" in err
    assert "broker" in err.replace("brokr", "")


NO_TOPIC = "cannot be a topic: a name has letters, digits, '.', '_' and '-', at most 249 of them"
NO_FOLDER = "cannot be a topic: '.' and '..' are names of directories"
PARTITION_OPTION = "give the partition in its own option: --topic {} --partition {}"
PRODUCE = ["produce", "--topic", "t", "--bootstrap-server", "b:1"]

NOT_UTF_8 = [
    (["nodes", "stop", "\udcff", "--control", "c:1"], r"ID '\udcff'", 0),
    (["faults", "clear", "\udcff", "--control", "c:1"], r"ID '\udcff'", 0),
    (["faults", "add", "--client-id", "a\udcff", "--control", "c:1"], r"--client-id 'a\udcff'", 1),
    (["topics", "create", "--topic", "t", "--config", "a=1", "--config", "b=\udcff"], r"--config 'b=\udcff'", 2),
    (["topics", "list", "--bootstrap-server", "\udcff:1"], r"--bootstrap-server '\udcff:1'", 0),
    (["transactions", "describe", "--transactional-id", "\udcff"], r"--transactional-id '\udcff'", 0),
    (["groups", "describe", "--group", "\udcff"], r"--group '\udcff'", 0),
    ([*PRODUCE, "--transactional-id", "\udcff"], r"--transactional-id '\udcff'", 0),
    (["broker", "--topic", "\udcff"], r"--topic '\udcff'", 0),
]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["consume", "--topic", "t", "--max-messages", "x"], "option --max-messages: 'x' is not an integer"),
        (["consume", "--topic", "t", "--max-messages=0"], "option --max-messages: '0' is less than 1"),
        (["transactions", "list", "--producer-id", "1", "--producer-id", "y"], "option --producer-id: 'y' is not an integer"),
        (["produce", "--topic", "t", "--message-format", "7"], "option --message-format: '7' is more than 1"),
        (["consume"], "option --topic is missing"),
        (["nodes", "list"], "option --control is missing (or the variable CHAFFINCH_CONTROL)"),
        (["consume", "--topic"], "option '--topic' requires an argument"),
        (["consume", "--nowhere"], "no such option: --nowhere: chaffinch consume --help lists the options"),
        (["topics", "list", "--jsn"], "no such option: --jsn: the nearest is --json"),
        (["--versoin"], "no such option: --versoin: the nearest is --version"),
        (["produce", "--broker-list", "b:1"], "no such option: --broker-list: the nearest is --bootstrap-server"),
        (["produce", "--producer.config", "f"], "no such option: --producer.config: the nearest is --command-config"),
        (["topics", "ls"], "no such command 'ls': the nearest is 'list'"),
        (["topics", "creat"], "no such command 'creat': the nearest is 'create'"),
        (["kafka-console-consumer"], "no such command 'kafka-console-consumer': the nearest is 'consume'"),
        (
            ["--bootstrap-server", "b:1", "topics", "list"],
            "no such option: --bootstrap-server before the command: options go after it, as in chaffinch COMMAND --bootstrap-server ...",
        ),
        (
            ["topics", "--bootstrap-server", "b:1", "list"],
            "no such option: --bootstrap-server before the command: options go after it,"
            " as in chaffinch topics COMMAND --bootstrap-server ...",
        ),
        (["topics", "describe", "orders"], "got unexpected extra argument(s) (orders): give a topic with --topic"),
        (["groups", "describe", "billing"], "got unexpected extra argument(s) (billing): give a group with --group"),
        (
            ["consume", "--topic", "orders", "more"],
            "got unexpected extra argument(s) (more): give a topic with --topic, give a group with --group",
        ),
        (["topics", "alter", "--topic", "a", "--topic", "b"], "option --topic is given twice: give it once"),
        (["produce", "--topic", "a", "--topic=a"], "option --topic is given twice: give it once"),
        *(
            (["consume", *given], "got unexpected extra argument(s) (orders): give a topic with --topic, give a group with --group")
            for given in (["orders"], ["--max-messages", "1", "orders"])
        ),
        (["topics", "create", "orders"], "got unexpected extra argument(s) (orders): give a topic with --topic"),
        (["nodes", "stop"], "argument ID is missing"),
        (["errors", "87", "88"], "got unexpected extra argument(s) (88)"),
        *((given, f"{says}: not UTF-8 at character {place}") for given, says, place in NOT_UTF_8),
        (["topics", "nowhere"], "no such command 'nowhere': chaffinch topics --help lists the commands"),
        (["consume", "--topic", ""], "--topic is empty"),
        (["consume", "--topic", "a b:0"], f"--topic 'a b:0' {NO_TOPIC}"),
        (["consume", "--topic", "a:0"], f"--topic 'a:0' {NO_TOPIC}; {PARTITION_OPTION.format('a', 0)}"),
        (["consume", "--topic", "a:"], f"--topic 'a:' {NO_TOPIC}"),
        (["consume", "--topic", "a:2147483647"], f"--topic 'a:2147483647' {NO_TOPIC}; {PARTITION_OPTION.format('a', 2**31 - 1)}"),
        *(
            (["consume", "--topic", name], f"--topic {name!r} {NO_TOPIC}")
            for name in ("a:2147483648", "a:99999999999", "a:\N{ARABIC-INDIC DIGIT THREE}", "a:-1", "...:")
        ),
        *((["consume", "--topic", name], f"--topic {name!r} {NO_FOLDER}") for name in (".", "..")),
        (["topics", "delete", "--topic", "a", "--topic", "."], f"--topic '.' {NO_FOLDER}"),
        (["replay", "--topic", "a", "--to", "b:1"], f"--to 'b:1' {NO_TOPIC}"),
        (["replay", "--topic", "a", "--to", "."], f"--to '.' {NO_FOLDER}"),
        (["replay", "--topic", "a", "--to", " "], "--to is empty"),
        (
            ["transactions", "abort", "--topic", "a.b:12", "--partition", "0"],
            f"--topic 'a.b:12' {NO_TOPIC}; {PARTITION_OPTION.format('a.b', 12)}",
        ),
        (["transactions", "find-hanging", "--topic", "a:1"], f"--topic 'a:1' {NO_TOPIC}; {PARTITION_OPTION.format('a', 1)}"),
        (["faults", "add", "--control", "c:1", "--topic", "a:1"], f"--topic 'a:1' {NO_TOPIC}; {PARTITION_OPTION.format('a', 1)}"),
        (["produce", "--topic", "a:0"], f"--topic 'a:0' {NO_TOPIC}"),
        (["replay", "--topic", "a:0"], f"--topic 'a:0' {NO_TOPIC}"),
        *((["topics", command, "--topic", "b", "--topic", "a:0"], f"--topic 'a:0' {NO_TOPIC}") for command in ("describe", "delete")),
        *((["topics", command, "--topic", "a:0"], f"--topic 'a:0' {NO_TOPIC}") for command in ("create", "alter")),
        (
            [*PRODUCE, "--acks", "0", "--transactional-id", "t"],
            "option acks cannot be '0' with a transactional.id: it must be all (acks: --acks, transactional.id: --transactional-id)",
        ),
        (
            [*PRODUCE, "--no-idempotent", "--transactional-id", "t"],
            "option enable.idempotence cannot be false with a transactional.id: transactions need it "
            "(enable.idempotence: --no-idempotent, transactional.id: --transactional-id)",
        ),
        (
            [*PRODUCE, "--compression", "brotli"],
            "--compression: option compression.type cannot be 'brotli': it must be one of none, gzip, snappy, lz4, zstd",
        ),
        (
            ["consume", "--topic", "t", "--bootstrap-server", "b:1", "--isolation-level", "x"],
            "--isolation-level: option isolation.level cannot be 'x': it must be one of read_committed, read_uncommitted",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_error_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.delenv("CHAFFINCH_CONTROL", raising=False)
    assert run(capsys, *arguments) == (2, "", f"chaffinch: {says}\n")


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (
            ["topics", "list", "--jsn", "--json"],
            2,
            {"error": "no such option: --jsn: the nearest is --json", "name": "UsageError", "code": None, "hint": "the nearest is --json"},
        ),
        (
            ["consume", "--topic", "t", "--json", "--max-messages", "x"],
            2,
            {"error": "option --max-messages: 'x' is not an integer", "name": "UsageError", "code": None, "hint": None},
        ),
        (
            ["topics", "alter", "--topic", "t", "--json"],
            2,
            {
                "error": "nothing to alter: give --partitions, --config or --delete-config",
                "name": "ConfigException",
                "code": None,
                "hint": "give --partitions, --config or --delete-config",
            },
        ),
        (
            ["topics", "list", "--json", "--command-config", "/nope/\x1b"],
            2,
            {"error": "--command-config /nope/\\x1b: No such file or directory", "name": "ConfigException", "code": None, "hint": None},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_json_option_makes_errors_json(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, error: dict[str, object]
) -> None:
    ended, out, err = run(capsys, *arguments)
    assert (ended, out, len(err.splitlines())) == (status, "", 1)
    assert json.loads(err) == error
    assert run(capsys, "topics", "lst")[2] == "chaffinch: no such command 'lst': the nearest is 'list'\n"


def test_json_after_the_end_of_options_is_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "errors", "--", "--json")[2].startswith("chaffinch: ")


def unused_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_timeout_ends_a_refused_connection(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    server = f"127.0.0.1:{unused_port()}"
    config = tmp_path / "client.properties"
    config.write_text("default.api.timeout.ms=60000\n")
    begin = time.monotonic()
    status, out, err = run(
        capsys, "topics", "list", "--bootstrap-server", server, "--timeout", "0.2", "--command-config", str(config), "--json"
    )
    assert time.monotonic() - begin < 10
    error = json.loads(err)
    assert (status, out, error["name"], error["code"], error["hint"]) == (1, "", "REQUEST_TIMED_OUT", 7, "it may be tried again")
    assert f"no broker reachable at {server} (refused)" in error["error"]
    for command in (["produce", "--topic", "t", "/dev/null"], ["consume", "--topic", "t"], ["groups", "list"], ["transactions", "list"]):
        status, _, err = run(capsys, *command, "--bootstrap-server", server, "--timeout", "0.2")
        assert (status, "REQUEST_TIMED_OUT (7)" in err, "(refused)" in err) == (1, True, True)
    assert time.monotonic() - begin < 20


def test_refused_connection_is_reported_within_three_seconds() -> None:
    arguments = [sys.executable, "-m", "chaffinch", "topics", "list", "--bootstrap-server", f"127.0.0.1:{unused_port()}", "--timeout", "3"]
    done = subprocess.run(arguments, capture_output=True, text=True)
    first = done.stderr.splitlines()[0]
    found = re.search(r"for (\d+) ms: no broker reachable at .* \(refused\)", first)
    assert done.returncode == 1
    assert found
    assert int(found[1]) < 3000


@pytest.mark.parametrize(("value", "reason"), [("0", "is less than 0.001"), ("x", "is not a number"), ("99999999", "is more than 2147483")])
def test_timeout_is_validated(capsys: pytest.CaptureFixture[str], value: str, reason: str) -> None:
    given = ["topics", "list", "--bootstrap-server", "b:1", "--timeout", value]
    assert run(capsys, *given) == (2, "", f"chaffinch: option --timeout: '{value}' {reason}\n")


def test_too_many_digits_are_not_a_partition(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "consume", "--topic", "a:" + "1" * 5000)
    assert (status, out) == (2, "")
    assert err.startswith("chaffinch: --topic 'a:111")
    assert "--partition" not in err


@pytest.mark.parametrize("command", ["topics", "groups", "transactions", "nodes", "faults"])
def test_command_without_sub_command_prints_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """On lines of its own: as a message it would be one."""
    status, out, err = run(capsys, command)
    assert (status, out) == (2, "")
    assert err.splitlines()[0] == f"Usage: chaffinch {command} [OPTIONS] COMMAND [ARGS]..."
    assert "  list " in err


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        ("orders:0", "PARTITIONS is '0': it must be a whole number from 1"),
        ("orders:1:0", "REPLICATION is '0': it must be a whole number from 1"),
        ("orders:x:1", "PARTITIONS is 'x': it must be a whole number from 1"),
    ],
)
def test_wrong_number_of_a_topic_is_named(capsys: pytest.CaptureFixture[str], topic: str, says: str) -> None:
    status, out, err = run(capsys, "broker", "--topic", topic)
    assert (status, out) == (2, "")
    assert err.startswith(f"chaffinch: topic '{topic}': {says}; expected NAME[:PARTITIONS[:REPLICATION]]")


@pytest.mark.parametrize(("name", "kind"), [("acks", "producers"), ("linger.ms", "producers"), ("group.instance.id", "consumers")])
def test_option_of_another_client_in_a_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, kind: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"{name}=1\n")
    status, _, err = run(capsys, "topics", "list", "--bootstrap-server", "b:1", "--command-config", str(file))
    says = f"chaffinch: --command-config {file}:1: unknown option '{name}': it is an option of {kind}, remove it here\n"
    assert (status, err) == (2, says)


def test_log_lines_have_the_program_name(tmp_path: Path) -> None:
    """In a pipe there are other programs."""
    file = tmp_path / "client.properties"
    file.write_text("client.dns.lookup=use_all_dns_ips\n")
    arguments = ["consume", "--topic", "t", "--bootstrap-server", "b:1", "--command-config", str(file), "--offset", "x"]
    done = subprocess.run([sys.executable, "-m", "chaffinch", *arguments], capture_output=True, text=True)
    assert done.stderr.splitlines() == [
        "chaffinch: option client.dns.lookup is known to Apache Kafka and without effect here",
        "chaffinch: --offset 'x': it must be earliest, latest or a whole number",
    ]


LIGHT = [["--help"], ["errors", "87"], ["topics", "--help"], ["groups", "--help"], ["transactions", "--help"]]


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_light_commands_load_no_heavy_modules(arguments: list[str]) -> None:
    code = (
        "import sys; from chaffinch.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "finally: print(sorted(name for name in sys.modules if '.' not in name or name.startswith('chaffinch.cli')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.replace("'", "").strip("[]\n").split(", "))
    assert not loaded & HEAVY
    others = {command.target.partition(":")[0] for name, command in cli.COMMANDS.items() if name != arguments[0]}
    assert not loaded & others


def test_broker_command_loads_neither_numba_nor_pyarrow() -> None:
    """They take longer to load than a broker may take to start; decision 47 has them come later, if ever."""
    code = "import sys, chaffinch.cli.main, chaffinch.cli.broker; print({'numba', 'pyarrow', 'chaffinch.cli.errors'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_entry_point_loads_almost_nothing() -> None:
    """Until the entry point runs, Ctrl-C ends in Python's own traceback: that time must stay short."""
    code = "import sys; before = set(sys.modules); import chaffinch.__main__; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__future__", "chaffinch", "chaffinch.__main__", "chaffinch.version"]


INTERRUPTED_WHILE_LOADING = """
import runpy, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "chaffinch.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
"""


SIGNALLED_IN_A_CALLBACK = """
import signal, sys
class Callback:
    def find_spec(self, name, path=None, target=None):
        if name == "chaffinch.cli.errors":
            try:
                signal.raise_signal(signal.{})
            except BaseException:
                pass
sys.meta_path.insert(0, Callback())
"""
SIGNALLED_IN_AN_ANNOTATION = """
import signal, typer.main
read = typer.main.get_params_from_function
def interrupted(function):
    typer.main.get_params_from_function = read
    eval("signal.raise_signal(signal.{})")
    return read(function)
typer.main.get_params_from_function = interrupted
"""


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize("code", [SIGNALLED_IN_A_CALLBACK, SIGNALLED_IN_AN_ANNOTATION], ids=["callback", "annotation"])
def test_signal_while_loading_a_sub_command_ends_it(tmp_path: Path, code: str, name: str, status: int) -> None:
    """An import has callbacks, of weak references, and what they raise is forgotten. After Ctrl-C in the midst of a text that it evaluates
    `python -m` ends by that signal, whatever the status."""
    (tmp_path / "started.py").write_text(f"{code.format(name)}\nfrom chaffinch.__main__ import main; main()")
    done = subprocess.run([sys.executable, "-m", "started", "errors", "87"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.parametrize("start", ["runpy.run_module('chaffinch', run_name='__main__')", "from chaffinch.__main__ import main; main()"])
def test_ctrl_c_while_loading_ends_quietly(start: str) -> None:
    """As `python -m chaffinch`, and as the installed command, whose entry point this is."""
    with open(Path(__file__).parents[2] / "pyproject.toml", "rb") as file:
        assert tomllib.load(file)["project"]["scripts"]["chaffinch"] == "chaffinch.__main__:main"
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_WHILE_LOADING + start], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_missing_extra_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("typer", "rich") or name == "chaffinch.cli.errors"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert run(capsys, "errors", "87") == (2, "", f"chaffinch: {missing} is not installed: pip install 'chaffinch[broker]'\n")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ConfigException("option linger.ms cannot be -1"), 2, "option linger.ms cannot be -1"),
        (InvalidTopicException("a/b", api="CreateTopics"), 1, "CreateTopics: INVALID_TOPIC_EXCEPTION (17): a/b"),
    ],
)
def test_own_error_is_one_line_with_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: KafkaException, status: int, text: str
) -> None:
    def broken() -> None:
        raise error

    monkeypatch.setattr("chaffinch.cli.errors.app", broken, raising=True)
    ended, out, err = run(capsys, "errors")
    assert (ended, out) == (status, "")
    assert err.startswith(f"chaffinch: {text}")
    assert len(err.splitlines()) == 1


def test_unexpected_errors_propagate(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("chaffinch.cli.errors.app", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["errors"])


def test_missing_own_module_propagates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "gone", cli.Command("chaffinch.cli.gone:gone", "Gone."))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["gone"])


def test_environment_variable_not_utf8_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAFFINCH_BOOTSTRAP_SERVER", "\udcff:1")
    assert run(capsys, "topics", "list") == (
        2,
        "",
        "chaffinch: CHAFFINCH_BOOTSTRAP_SERVER '\\udcff:1': not UTF-8 at character 0\n",
    )


def test_file_names_may_have_any_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    says = "chaffinch: --config-file /nope/\\udcff: No such file or directory\n"
    assert run(capsys, "broker", "--config-file", "/nope/\udcff") == (2, "", says)


def test_help_is_printed_despite_other_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "consume", "orders", "--help")[0] == 0
