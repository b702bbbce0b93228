"""Commands whose options are given once, unless they may be repeated: the library takes the last one, and says nothing of the others.

Kafka's own tools refuse it, too (joptsimple's MultipleArgumentsForOptionException).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand

from chaffinch.errors import ConfigException


class OnceCommand(TyperCommand):
    """ConfigException for an option with a value that is given twice; flags may be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, found = self.make_parser(ctx).parse_args(args=list(args))
        once = [each for each in found if each.param_type_name == "option" and not (each.multiple or getattr(each, "is_flag", False))]
        for parameter, count in Counter(once).items():
            if count > 1:
                raise ConfigException(f"option {max(parameter.opts, key=len)} is given twice: give it once")
        return super().parse_args(ctx, args)


class OnceApp(typer.Typer):
    """Its commands are of that kind. Their help is plain: in boxes, on 80 columns, long names of options are cut."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(rich_markup_mode=None, **keywords)

    def command(self, name: str | None = None, **keywords: Any) -> Any:
        return super().command(name, cls=OnceCommand, **keywords)
