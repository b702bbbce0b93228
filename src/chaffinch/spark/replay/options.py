"""The options of a replay: how the cluster is reached, and how the sink writes what is replayed.

The latter are the sink's own rows, less what a replay decides itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from chaffinch.client.hints import OF_JAVA
from chaffinch.client.options import connection_options
from chaffinch.settings import Option, OptionTable
from chaffinch.spark.options import CLIENT, KAFKA
from chaffinch.spark.sink.option_tables import SINK, SINK_WITHOUT_EFFECT

_REFUSED: Final = {
    "transactional.id": "a replay names its transactions itself, after the letters or the token",
}
_OTHERS: Final = {option.name for option in CLIENT} | {KAFKA + name for name in _REFUSED}

WRITING: Final = OptionTable(
    (option for option in SINK.options if option.name.startswith(KAFKA) and option.name not in _OTHERS),
    hints={KAFKA + name: hint for name, hint in _REFUSED.items()},
)
"""Of what is written, named as for the sink."""


def _bare(option: str | Option) -> str | Option:
    """Under Kafka's own name."""
    return option.removeprefix(KAFKA) if isinstance(option, str) else replace(option, name=option.name.removeprefix(KAFKA))


COMMAND: Final = OptionTable(
    (*connection_options("chaffinch-replay"), *(replace(option, name=option.name.removeprefix(KAFKA)) for option in WRITING.options)),
    without_effect=[bare for option in SINK_WITHOUT_EFFECT if (bare := _bare(option)) != option],
    hints={**OF_JAVA, **_REFUSED},
)
"""Of both, as the command takes them: under Kafka's names."""
