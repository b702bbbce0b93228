"""`make docs`: prints tables of the code into `docs/`; `--check` only reports stale documents, and fails.

A printed part is between `<!-- printed: NAME -->` and `<!-- end -->`; `PARTS` has one function per NAME. `docs/reference/errors.md` is
printed as a whole, like the modules `option_types.py` of the packages. All parts are read from the modules, so that documents cannot
contradict the code.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import get_args

import typer
from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

from chaffinch.admin import options as admin_options
from chaffinch.broker.core import counters, kafka_options, options
from chaffinch.broker.core.topics import topic_options
from chaffinch.broker.core.transactions import moves
from chaffinch.broker.core.transactions.moves import Ending
from chaffinch.cli import errors_page
from chaffinch.cli.main import COMMANDS
from chaffinch.consumer.core import options as consumer_options
from chaffinch.consumer.metrics import METRICS as CONSUMER_METRICS
from chaffinch.producer.core import options as producer_options
from chaffinch.producer.metrics import METRICS as PRODUCER_METRICS
from chaffinch.protocol.apis import APIS
from chaffinch.settings import Option, OptionTable
from chaffinch.spark.commit.operations import Step
from chaffinch.spark.options import SPARK_OPTION_NAMES
from chaffinch.spark.sink import option_tables
from chaffinch.spark.source import options as source_options
from chaffinch.table_writes.options import TABLE
from tests.interop.differential.expected_differences import EXPECTED
from tools import kip_tables, option_types
from tools.markdown_tables import member_table, metrics_table, options_table, producer_transaction_table, transaction_table

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BROKER_SOURCE = ROOT / "src" / "chaffinch" / "broker"
NAMES_LINE_MAX = 150

_PART = re.compile(r"(<!-- printed: (?P<name>[^>]+?) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


# --- printed parts ---------------------------------------------------------------------------------------------------------


_FAMILY = re.compile(r"((?:kafka\.)?sasl\.(?:kerberos|oauthbearer)\.).*")
_FAMILY_OF_BROKERS = re.compile(
    r"((?:sasl\.(?:kerberos|login|oauthbearer)|controller|delegation\.token|group\.share|group\.streams|remote\.log|share\.coordinator)\.).*"
)


def names(found: Iterable[str], family: re.Pattern[str] = _FAMILY) -> str:
    """Names in alphabetical order, in lines of readable length. A family of options without effect is one name with `*`."""
    lines = [""]
    for name in sorted({family.sub(r"\1*", name) for name in found}):
        word = f"`{name}`"
        if lines[-1] and len(lines[-1]) + len(word) + 2 > NAMES_LINE_MAX:
            lines.append("")
        lines[-1] += f", {word}" if lines[-1] else word
    return ",\n".join(lines) + "\n"


def topic_options_with_effect() -> frozenset[str]:
    """Topic options with an effect: `resolve` reads them into a field of TopicConfig, and other code reads the field."""
    resolve = next(
        node
        for node in ast.walk(ast.parse((BROKER_SOURCE / "core" / "topics" / "topic_options.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == "resolve"
    )
    call = next(node for node in ast.walk(resolve) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "TopicConfig")
    option_by_field = {str(keyword.arg): _options_read(keyword.value, resolve) for keyword in call.keywords}
    assert option_by_field.keys() == {field.name for field in fields(topic_options.TopicConfig)}
    used = _attributes_read(path for path in BROKER_SOURCE.rglob("*.py"))
    return frozenset(name for field, read in option_by_field.items() if f"config.{field}" in used for name in read)


def _options_read(expression: ast.expr, function: ast.FunctionDef) -> set[str]:
    """Names in `settings["..."]` in an expression; local variables are replaced by their assigned expressions."""
    assigned = {
        node.targets[0].id: node.value for node in function.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    found: set[str] = set()
    for node in ast.walk(expression):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and getattr(node.value, "id", "") == "settings":
            found.add(str(node.slice.value))
        elif isinstance(node, ast.Name) and node.id in assigned and node.id != "settings":
            found |= _options_read(assigned[node.id], function)
    return found


def _attributes_read(paths: Iterable[Path]) -> set[str]:
    """`config.field` for every attribute access on a name `config`."""
    found: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] == "config":
                found.add(f"config.{node.attr}")
    return found


def _topic_options(*, with_effect: bool) -> list[Option]:
    effective = topic_options_with_effect()
    return [option for option in topic_options.TOPIC_OPTIONS.options if (option.name in effective) is with_effect]


def broker_options() -> str:
    """The broker's options without those that are only defaults of topic options; these have their own table."""
    defaults = set(topic_options.BROKER_SYNONYMS.values())
    return options_table(option for option in options.BROKER_OPTIONS.options if option.name not in defaults)


def topic_defaults() -> str:
    """Broker option -> topic option, for those with an effect."""
    effective = topic_options_with_effect()
    rows = [f"| `{broker}` | `{topic}` |" for topic, broker in topic_options.BROKER_SYNONYMS.items() if topic in effective]
    return "\n".join(["| broker option | gives topics their |", "|---|---|", *rows]) + "\n"


def broker_without_effect() -> str:
    shown_only = [topic_options.BROKER_SYNONYMS[option.name] for option in _topic_options(with_effect=False) if option.name in _SYNONYMS]
    idle = [option.name for option in options.IDLE_OPTIONS_BY_NAME.values() if not option.refusal]
    return names({*idle, *shown_only}, _FAMILY_OF_BROKERS)


def broker_options_refused() -> str:
    rows = [f"| `{name}` | {text} |" for name, text in kafka_options.REFUSED.items()]
    return "\n".join(["| option | why, and what to do |", "|---|---|", *rows]) + "\n"


_SYNONYMS = topic_options.BROKER_SYNONYMS


def broker_counters() -> str:
    rows = [f"| `{name}` | {text} |" for name, text in counters.HELP.items()]
    return "\n".join(["| counter | counts |", "|---|---|", *rows]) + "\n"


def differences() -> str:
    """Intended differences from Apache Kafka. Bars in patterns are escaped for the table."""
    rows = [f"| `{pattern.replace('|', chr(92) + '|')}` | {reason} |" for pattern, reason in EXPECTED.items()]
    return "\n".join(["| where | why |", "|---|---|", *rows]) + "\n"


def apis() -> str:
    rows = [f"| {api.name} | {_range(api.served)} | {_range(api.reach)} |" for api in sorted(APIS.values(), key=lambda api: api.key)]
    return "\n".join(["| API | the broker serves | the clients use |", "|---|---|---|", *rows]) + "\n"


def _range(versions: range) -> str:
    return f"{versions.start} to {versions.stop - 1}" if versions else "-"


def transaction_answers() -> str:
    """Table of the coordinator: state x request -> response, for both versions of transactions."""
    version_1, version_2 = (Ending.COMMIT, Ending.ABORT), tuple(Ending)
    head = ["state", "InitProducerId", "add", "verify", *(f"{ending.value} (1)" for ending in version_1)]
    rows = [head + [f"{ending.value} (2)" for ending in version_2]]
    rows.append(["---"] * len(rows[0]))
    for state in moves.INIT_PRODUCER_ID:
        answers = [table[state] for table in (moves.INIT_PRODUCER_ID, moves.ADD_PARTITIONS, moves.VERIFY_PARTITIONS)]
        answers += [moves.END_VERSION_1[state][ending] for ending in version_1]
        answers += [moves.END_VERSION_2[state][ending] for ending in version_2]
        rows.append([state.title, *(_response(answer) for answer in answers)])
    legend = "".join(f"- *{_in_words(move)}*: {move.value}.\n" for move in moves.Move)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n" + legend


def _response(answer: moves.Answer) -> str:
    return str(answer.code.number) if isinstance(answer, moves.Refused) else _in_words(answer)


def _in_words(move: moves.Move) -> str:
    return move.name.lower().replace("_", " ")


def steps() -> str:
    """The steps of a commit without errors, as a numbered list."""
    in_order = [step for step in Step if step not in (Step.ABORT, Step.READ_MARKER_AFTER_FENCING)]
    return "".join(f"{number}. `{step.value}`\n" for number, step in enumerate(in_order, 1))


def command_line() -> str:
    """The options of each cluster command, from its signature, without the common ones, which the page describes once."""
    parts = []
    for name in ("topics", "produce", "consume", "groups", "transactions", "replay"):
        module, _, attribute = COMMANDS[name].target.partition(":")
        target = getattr(import_module(module), attribute)
        if not isinstance(target, typer.Typer):
            parts.append(_options_of(name, target))
            continue
        for command in target.registered_commands:
            assert command.callback is not None
            parts.append(_options_of(f"{name} {command.name or command.callback.__name__.replace('_', '-')}", command.callback))
    return "\n".join(parts)


def _options_of(name: str, function: Callable[..., object]) -> str:
    rows = [f"### {name}", "", inspect.getdoc(function) or "", ""]
    found = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        info = next(entry for entry in get_args(parameter.annotation) if isinstance(entry, ParameterInfo))
        if parameter.name in _IN_ALL_COMMANDS:
            continue
        # Inside Annotated typer stores the first option name as the default.
        words = [info.metavar] if isinstance(info, ArgumentInfo) else [str(info.default), info.metavar]
        spelling = " ".join(filter(None, words)).replace("|", "\\|")
        is_required = isinstance(info, OptionInfo) and parameter.default is parameter.empty
        meaning = (info.help or "").replace("\\t", "`\\t`")
        found.append(f"| `{spelling}` |{' yes |' if is_required else ' |'} {meaning} |")
    return "\n".join([*rows, "| option | required | meaning |", "|---|---|---|", *found]) + "\n" if found else "\n".join(rows)


_IN_ALL_COMMANDS = {"bootstrap_server", "command_config", "timeout", "as_json"}


def without_effect(table: OptionTable) -> str:
    """Options without effect of a Spark table, without those that Spark adds by itself."""
    return names(table.without_effect - set(SPARK_OPTION_NAMES))


PARTS: Mapping[str, Callable[[], str]] = {
    "broker options": broker_options,
    "broker options refused": broker_options_refused,
    "broker options without effect": broker_without_effect,
    "topic defaults": topic_defaults,
    "topic options": lambda: options_table(_topic_options(with_effect=True)),
    "topic options without effect": lambda: names(option.name for option in _topic_options(with_effect=False)),
    "broker counters": broker_counters,
    "record rules": kip_tables.record_rules,
    "produce answers": kip_tables.produce_responses,
    "apis": apis,
    "differences": differences,
    "producer options": lambda: options_table(producer_options.PRODUCER_OPTIONS.options),
    "producer options without effect": lambda: names(producer_options.WITHOUT_EFFECT),
    "producer metrics": lambda: metrics_table(PRODUCER_METRICS),
    "consumer options": lambda: options_table(consumer_options.CONSUMER_OPTIONS.options),
    "consumer metrics": lambda: metrics_table(CONSUMER_METRICS),
    "consumer options without effect": lambda: names(consumer_options.WITHOUT_EFFECT),
    "member states": member_table,
    "transaction states": producer_transaction_table,
    "transaction moves": transaction_table,
    "transaction answers": transaction_answers,
    "sink options": lambda: options_table(option_tables.SINK.options),
    "sink options of direct": lambda: options_table(option_tables.DIRECT_ONLY),
    "sink options without effect": lambda: without_effect(option_tables.SINK),
    "source options": lambda: options_table(source_options.SOURCE.options),
    "source options without effect": lambda: without_effect(source_options.SOURCE),
    "stream source options": lambda: options_table(
        option for option in source_options.STREAM_SOURCE.options if option not in source_options.SOURCE.options
    ),
    "table options": lambda: options_table(TABLE.options),
    "commit steps": steps,
    "admin options": lambda: options_table(admin_options.READING_TABLE.options),
    "command line": command_line,
}

PAGES: Mapping[str, Callable[[], str]] = {"reference/errors.md": errors_page.page}
"""Documents that are printed from the first line to the last."""


# --- documents --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Document:
    """A document with its present and its expected text."""

    path: Path
    present: str
    expected: str

    @property
    def is_stale(self) -> bool:
        return self.present != self.expected


def with_printed_parts(text: str) -> str:
    """The text with every printed part updated. Raises KeyError for an unknown part."""
    return _PART.sub(lambda found: f"{found[1]}{PARTS[found['name']]()}{found[4]}", text)


def without_parts(text: str) -> str:
    """The text without its printed parts."""
    return _PART.sub("", text)


def documents(folder: Path = DOCS) -> list[Document]:
    """Every document below `folder`."""
    found = []
    for path in sorted(folder.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        page = PAGES.get(path.relative_to(folder).as_posix())
        found.append(Document(path, text, with_printed_parts(text) if page is None else page()))
    return found


def option_modules() -> list[Document]:
    """The modules with the types of options."""
    return [
        Document(path, path.read_text(encoding="utf-8") if path.exists() else "", text) for path, text in option_types.modules().items()
    ]


def main(arguments: list[str]) -> int:
    """Print or check the documents. Returns the exit status: 1 if `--check` found a stale one, 2 for an unknown argument."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m tools.print_documents [--check]", file=sys.stderr)
        return 2
    stale = [document for document in (*documents(), *option_modules()) if document.is_stale]
    for document in stale:
        name = document.path.relative_to(ROOT)
        if arguments:
            print(f"{name} is stale: run `make docs`", file=sys.stderr)
        else:
            document.path.write_text(document.expected, encoding="utf-8")
            print(f"{name} printed")
    return 1 if stale and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
