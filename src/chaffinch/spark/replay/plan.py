"""Plan and report of a replay. Plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from chaffinch.client.option_hints import JAVA_ONLY_OPTIONS
from chaffinch.client.options import connection_options
from chaffinch.errors import ConfigException, codes
from chaffinch.public_names import exported_from
from chaffinch.settings import Option, OptionTable, shown_value
from chaffinch.spark.commit.messages import REJECTIONS_NAMED_MAX
from chaffinch.spark.options import CLIENT_OPTIONS, KAFKA_PREFIX
from chaffinch.spark.replay import dead_letters
from chaffinch.spark.sink.option_tables import SINK, SINK_WITHOUT_EFFECT

TOKEN_BYTES_MAX: Final = 1_000
"""Together with the name of a Parquet file it becomes a group id and a transactional id, whose limit is 32767 bytes."""
_KAFKA_OPTIONS: Final = "options named kafka.* to values"
_PAIRS: Final = {"client": _KAFKA_OPTIONS, "writing": _KAFKA_OPTIONS, "repairs": "columns to SQL expressions"}

_REFUSED: Final = {
    "transactional.id": "a replay derives the names of its transactions from the letters or the token",
}
_EXCLUDED: Final = {option.name for option in CLIENT_OPTIONS} | {KAFKA_PREFIX + name for name in _REFUSED}

WRITING: Final = OptionTable(
    (option for option in SINK.options if option.name.startswith(KAFKA_PREFIX) and option.name not in _EXCLUDED),
    hints={KAFKA_PREFIX + name: hint for name, hint in _REFUSED.items()},
)
"""Options of the writes, named as for the sink: its options `kafka.*` without those that a replay sets itself."""


def _without_prefix(option: str | Option) -> str | Option:
    """The option without the prefix `kafka.`."""
    return option.removeprefix(KAFKA_PREFIX) if isinstance(option, str) else replace(option, name=option.name.removeprefix(KAFKA_PREFIX))


COMMAND: Final = OptionTable(
    (
        *connection_options("chaffinch-replay"),
        *(replace(option, name=option.name.removeprefix(KAFKA_PREFIX)) for option in WRITING.options),
    ),
    without_effect=[plain for option in SINK_WITHOUT_EFFECT if (plain := _without_prefix(option)) != option],
    hints={**JAVA_ONLY_OPTIONS, **_REFUSED},
)
"""Options of the command: connection and writes, under the names of Kafka."""


@exported_from("chaffinch.spark")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """Plan of a replay: the letters of `topic`, or the Parquet files in `path`. Fields correspond to options of the command.

    Args:
        client: connection options of the cluster, named `kafka.*`; `kafka.bootstrap.servers` is required.
        writing: options of the writes (`WRITING`), named `kafka.*`.
        topic: the dead letter topic. With `path`: the topic that also has the letters of the files.
        path: the folder of Parquet files with dead letters.
        to: the target topic; default: the original topic of each letter.
        repairs: column (of `dead_letters.WRITTEN`) -> SQL expression over `dead_letters.COLUMNS`.
        only: names of errors; other letters are not selected.
        where: an SQL condition over `dead_letters.COLUMNS`; other letters are not selected.
        token: replays all existing letters once under this name, whether they were replayed before or not. At most 1000 bytes of printable
            characters.
        is_dry_run: check the rows and write nothing.

    Raises:
        ConfigException: a field is invalid.
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
        """Whether an exception handler (KIP-1038), or its option, can drop letters."""
        settings = WRITING.parse(self.writing)
        return settings["kafka.custom.exception.handler.class"] is not None or bool(settings["kafka.drop.invalid.large.records"])

    @property
    def selects(self) -> bool:
        """Whether the plan selects letters."""
        return bool(self.only) or self.where is not None

    def __post_init__(self) -> None:
        self._check_types()
        if self.topic is None and self.path is None:
            raise ConfigException("give --topic, --parquet, or both for files whose letters are also in the topic")
        for option, value in (("--topic", self.topic), ("--parquet", self.path)):
            if value is not None and not value.strip():
                raise ConfigException(f"{option} is empty: give the location of the dead letters")
        if self.to is not None and not self.to.strip():
            raise ConfigException("--to is empty: name a topic, or leave it out")
        if self.to is not None and self.to == self.topic:
            raise ConfigException(f"--to cannot be {self.to}: that is the topic that the letters are read from")
        WRITING.parse(self.writing)
        self._check_repairs()
        self._check_selection()
        self._check_token()

    def _check_types(self) -> None:
        """Check types, for plans written in Python."""
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
            raise ConfigException(f"--only cannot be {shown_value(self.only)}: it must be a sequence of error names")
        for name, pairs in (("client", self.client), ("writing", self.writing), ("repairs", self.repairs)):
            if not isinstance(pairs, Mapping) or not all(isinstance(each, str) for pair in pairs.items() for each in pair):
                raise ConfigException(f"{name} cannot be {shown_value(pairs)}: it must be a mapping of {_PAIRS[name]}, both strings")

    def _check_repairs(self) -> None:
        for column, expression in self.repairs.items():
            if column not in dead_letters.WRITTEN:
                columns = ", ".join(dead_letters.WRITTEN)
                raise ConfigException(f"--repair {column}=...: a row has no such column; its columns are: {columns}")
            if not expression.strip():
                raise ConfigException(
                    f"--repair {column}= is empty: give it an SQL expression; without a value the column is {column}=NULL"
                )
        if self.to is not None and "topic" in self.repairs:
            raise ConfigException("the topic is given twice: by --to and by --repair topic=...")

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
            allowed = f"printable characters, at most {TOKEN_BYTES_MAX} bytes"
            raise ConfigException(f"--token cannot be {shown_value(self.token)}: it must be {allowed}")


@exported_from("chaffinch.spark")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """Report of a replay: counts of letters. `examples`: the first reasons of those that are still rejected.

    `is_repetition`: the token was written before, and this replay wrote nothing.
    """

    read: int = 0
    written: int = 0
    written_before: int = 0
    """Written letters that another replay has written before, with its repairs."""
    written_before_by: Mapping[str, int] = field(default_factory=dict)
    """`written_before` by the description of the replay, from its note or marker."""
    not_selected: int = 0
    """Letters that were not selected. They do not count as read, and another replay can write them."""
    still_rejected: Mapping[str, int] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Letters that the handler has dropped, by error: they count as replayed, and are not written."""
    is_repetition: bool = False

    @classmethod
    def of_earlier(cls, names: Mapping[str, int]) -> ReplayReport:
        """The report of letters that other replays have written, by their descriptions."""
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
