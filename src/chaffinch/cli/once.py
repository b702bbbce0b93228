"""What all commands ask of their command line, and the library does not.

An option is given once, unless it may be repeated: the library takes the last one, and says nothing of the others. Kafka's own tools
refuse it, too (joptsimple's MultipleArgumentsForOptionException). What is no name of a file is a text, and that is UTF-8.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import typer
from typer.core import TyperCommand

from chaffinch.errors import ConfigException

# What is shown in the place of a file's name, which may have any bytes.
_FILES: Final = frozenset({"FILE", "[FILE]", "DIR"})


class OnceCommand(TyperCommand):
    """ConfigException for an option with a value that is given twice, though flags may be repeated, and for texts that are not UTF-8."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, surplus, found = self.make_parser(ctx).parse_args(args=list(args))
        once = [each for each in found if each.param_type_name == "option" and not (each.multiple or getattr(each, "is_flag", False))]
        for parameter, count in Counter(once).items():
            if count > 1:
                raise ConfigException(f"option {max(parameter.opts, key=len)} is given twice: give it once")
        try:
            rest = super().parse_args(ctx, args)
        except Exception as error:
            # `consume orders`: what is there says more of what was meant than what is missing.
            if type(error).__name__ == "MissingParameter" and surplus and not any(map(_is_argument, self.params)):
                ctx.fail(f"Got unexpected extra argument(s) ({' '.join(surplus)})")
            raise
        for parameter in self.params:
            if parameter.metavar not in _FILES:
                _check_texts(ctx, parameter)
        return rest


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _check_texts(ctx: Any, parameter: Any) -> None:
    """Python makes half a surrogate pair of each byte that is not UTF-8, which only the request that holds it would fail on."""
    value = ctx.params.get(parameter.name)
    for text in value if isinstance(value, list | tuple) else (value,):
        try:
            if isinstance(text, str):
                text.encode()
        except UnicodeEncodeError as error:
            raise ConfigException(f"{_place(ctx, parameter)} {text!r}: expected a text, and character {error.start} is not UTF-8") from None


def _place(ctx: Any, parameter: Any) -> str:
    source = ctx.get_parameter_source(parameter.name)
    if source is not None and source.name == "ENVIRONMENT":
        return str(parameter.envvar)
    return str((parameter.metavar or parameter.name).strip("[]") if _is_argument(parameter) else max(parameter.opts, key=len))


class OnceApp(typer.Typer):
    """Its commands are of that kind. Their help is plain: in boxes, on 80 columns, long names of options are cut."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(rich_markup_mode=None, **keywords)

    def command(self, name: str | None = None, **keywords: Any) -> Any:
        return super().command(name, cls=OnceCommand, **keywords)
