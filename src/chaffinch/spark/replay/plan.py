"""What is to be replayed, with its options, and what became of it. Plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from chaffinch.client.option_hints import JAVA_ONLY_OPTIONS
from chaffinch.client.options import connection_options
from chaffinch.errors import ConfigException, codes
from chaffinch.settings import Option, OptionTable, shown_value
from chaffinch.spark.commit.messages import REJECTIONS_NAMED_MAX
from chaffinch.spark.options import CLIENT_OPTIONS, KAFKA_PREFIX
from chaffinch.spark.replay import dead_letters
from chaffinch.spark.sink.option_tables import SINK, SINK_WITHOUT_EFFECT

TOKEN_BYTES_MAX: Final = 1_000
"""With the name of a Parquet file it becomes the name of a group and of a transaction, which have 32767."""
_KAFKA_OPTIONS: Final = "options named kafka.* to values"
_PAIRS: Final = {"client": _KAFKA_OPTIONS, "writing": _KAFKA_OPTIONS, "repairs": "columns to SQL expressions"}

_REFUSED: Final = {
    "transactional.id": "a replay names its transactions itself, after the letters or the token",
}
_EXCLUDED: Final = {option.name for option in CLIENT_OPTIONS} | {KAFKA_PREFIX + name for name in _REFUSED}

WRITING: Final = OptionTable(
    (option for option in SINK.options if option.name.startswith(KAFKA_PREFIX) and option.name not in _EXCLUDED),
    hints={KAFKA_PREFIX + name: hint for name, hint in _REFUSED.items()},
)
"""The options of what is written, named as for the sink: its own rows, less what a replay decides itself."""


def _without_prefix(option: str | Option) -> str | Option:
    """Under Kafka's own name."""
    return option.removeprefix(KAFKA_PREFIX) if isinstance(option, str) else replace(option, name=option.name.removeprefix(KAFKA_PREFIX))


COMMAND: Final = OptionTable(
    (
        *connection_options("chaffinch-replay"),
        *(replace(option, name=option.name.removeprefix(KAFKA_PREFIX)) for option in WRITING.options),
    ),
    without_effect=[plain for option in SINK_WITHOUT_EFFECT if (plain := _without_prefix(option)) != option],
    hints={**JAVA_ONLY_OPTIONS, **_REFUSED},
)
"""How the cluster is reached and how it is written to, as the command takes both: under Kafka's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What to replay: the letters of `topic`, or the Parquet files in `path`. Names are those of the command's options.

    `client`: options of the cluster, `writing`: of what is written there (`WRITING`), both named `kafka.*`.
    `repairs`: column (of `dead_letters.WRITTEN`) -> SQL expression over `dead_letters.COLUMNS`.
    `topic` and `path`: the letters of the files, which are in the topic too. `only`: letters with these errors; `where`: those for which
    an SQL condition over `dead_letters.COLUMNS` is true. `token`: all letters that there are, replayed before or not, once under this name.
    """

    client: Mapping[str, str]
    writing: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    path: str | None = None
    to: str | None = None
    repairs: Mapping[str, str] = field(default_factory=dict)
    only: Sequence[str] = ()
    where: str | None = None
    token: str | None = None
    is_dry_run: bool = False

    @property
    def asks_handler(self) -> bool:
        """Whether a handler of KIP-1038, or its option, may leave letters out."""
        settings = WRITING.parse(self.writing)
        return settings["kafka.custom.exception.handler.class"] is not None or bool(settings["kafka.drop.invalid.large.records"])

    @property
    def selects(self) -> bool:
        """Whether some letters are passed over."""
        return bool(self.only) or self.where is not None

    def __post_init__(self) -> None:
        self._check_types()
        if self.topic is None and self.path is None:
            raise ConfigException("give --topic, --parquet, or both for files whose letters are in the topic too")
        for option, value in (("--topic", self.topic), ("--parquet", self.path)):
            if value is not None and not value.strip():
                raise ConfigException(f"{option} is empty: say where the dead letters are")
        if self.to is not None and not self.to.strip():
            raise ConfigException("--to is empty: name a topic, or leave it out")
        if self.to is not None and self.to == self.topic:
            raise ConfigException(f"--to cannot be {self.to}: that is the topic that the letters are read from")
        WRITING.parse(self.writing)
        self._check_repairs()
        self._check_selection()
        self._check_token()

    def _check_types(self) -> None:
        """For those who write it in Python."""
        for option, value in (
            ("--topic", self.topic),
            ("--parquet", self.path),
            ("--to", self.to),
            ("--where", self.where),
            ("--token", self.token),
        ):
            if not isinstance(value, str | None):
                raise ConfigException(f"{option} cannot be {shown_value(value)}: it must be a string")
        if not isinstance(self.is_dry_run, bool):
            raise ConfigException(f"is_dry_run cannot be {shown_value(self.is_dry_run)}: it must be True or False")
        if isinstance(self.only, str) or not isinstance(self.only, Sequence) or not all(isinstance(name, str) for name in self.only):
            raise ConfigException(f"--only cannot be {shown_value(self.only)}: it must be a sequence of names of errors")
        for name, pairs in (("client", self.client), ("writing", self.writing), ("repairs", self.repairs)):
            if not isinstance(pairs, Mapping) or not all(isinstance(each, str) for pair in pairs.items() for each in pair):
                raise ConfigException(f"{name} cannot be {shown_value(pairs)}: it must be a mapping of {_PAIRS[name]}, strings both")

    def _check_repairs(self) -> None:
        for column, expression in self.repairs.items():
            if column not in dead_letters.WRITTEN:
                raise ConfigException(f"--repair {column}=...: a row has no such column; there are: {', '.join(dead_letters.WRITTEN)}")
            if not expression.strip():
                raise ConfigException(
                    f"--repair {column}= is empty: give it an SQL expression; without a value the column is {column}=NULL"
                )
        if self.to is not None and "topic" in self.repairs:
            raise ConfigException("the topic is said twice: by --to and by --repair topic=...")

    def _check_selection(self) -> None:
        for name in self.only:
            try:
                codes.by_name(name)
            except KeyError as error:
                raise ConfigException(f"--only {shown_value(name)}: {error.args[0]}") from None
        if self.where is not None and not self.where.strip():
            raise ConfigException("--where is empty: give it an SQL condition, or leave it out")

    def _check_token(self) -> None:
        if self.token is None:
            return
        if not self.token.strip():
            raise ConfigException("--token is empty: give it a name, or leave it out")
        if not self.token.isprintable() or len(self.token.encode()) > TOKEN_BYTES_MAX:
            allowed = f"characters that can be printed, at most {TOKEN_BYTES_MAX} bytes of them"
            raise ConfigException(f"--token cannot be {shown_value(self.token)}: it must be {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What became of the letters. `examples`: the first reasons of those that are still rejected.

    `is_repetition`: something was written under the token before, and nothing now.
    """

    read: int = 0
    written: int = 0
    written_before: int = 0
    """Of those that are written: by another replay, with its repairs, before this one could."""
    written_before_by: Mapping[str, int] = field(default_factory=dict)
    """The same by the replay that has written them, where its note or its marker names it."""
    not_selected: int = 0
    """Letters that were passed over, and are not read: another replay may write them."""
    still_rejected: Mapping[str, int] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Letters that the handler said to leave out, by error: they are done with, and written nowhere."""
    is_repetition: bool = False

    @classmethod
    def of_earlier(cls, names: Mapping[str, int]) -> ReplayReport:
        """Of letters that other replays have written, by the replays' names."""
        count = sum(names.values())
        return cls(read=count, written=count, written_before=count, written_before_by=dict(names))

    @classmethod
    def of(cls, read: int, rejected: Mapping[str, int], examples: Sequence[str], dropped: Mapping[str, int] | None = None) -> ReplayReport:
        left_out = dict(dropped or {})
        written = read - sum(rejected.values()) - sum(left_out.values())
        named = tuple(examples[:REJECTIONS_NAMED_MAX])
        return cls(read=read, written=written, still_rejected=dict(rejected), examples=named, dropped=left_out)

    def __add__(self, other: ReplayReport) -> ReplayReport:
        rejected = Counter(self.still_rejected) + Counter(other.still_rejected)
        dropped = Counter(self.dropped) + Counter(other.dropped)
        report = ReplayReport.of(self.read + other.read, rejected, self.examples + other.examples, dropped)
        return replace(
            report,
            is_repetition=self.is_repetition or other.is_repetition,
            written_before=self.written_before + other.written_before,
            written_before_by=dict(Counter(self.written_before_by) + Counter(other.written_before_by)),
            not_selected=self.not_selected + other.not_selected,
        )
