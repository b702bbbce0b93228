"""Output modes and save modes that Spark refuses before it calls a data source: refused earlier, with the mode to use instead.

Spark refuses output mode `update` for every Python sink, but only after `start()`, in the thread of the query. It refuses every save mode
but append and overwrite, also its default, in `save()`. Neither error names an alternative that fits a topic. `session` therefore adds a
check to `start` and `save` of the PySpark classes that it uses. Without `session` the errors are those of Spark.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from chaffinch.errors import ConfigException
from chaffinch.spark.error_texts import UNUSABLE_OUTPUT_MODE, config_error_of_spark
from chaffinch.spark.refusals import Refusal, invalid

FORMAT: Final = "chaffinch"
_MARK: Final = "_chaffinch_checks_modes"


def add_checks(*, is_connect: bool) -> None:
    """Add the checks to the writers of this process, those of Spark Connect or of Spark itself. Repeated calls have no effect."""
    if is_connect:
        from pyspark.sql.connect.readwriter import DataFrameWriter
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

        _wrap(DataStreamWriter, "start", functools.partial(_start, _modes_on_connect))
        _wrap(DataFrameWriter, "save", _save)
    else:
        from pyspark.sql import readwriter
        from pyspark.sql.streaming import readwriter as streaming

        _wrap(streaming.DataStreamWriter, "start", functools.partial(_start, _modes_in_java))
        _wrap(readwriter.DataFrameWriter, "save", _save)


def _wrap(kind: type, name: str, check: Callable[..., Any]) -> None:
    method = getattr(kind, name)
    if hasattr(method, _MARK):
        return

    @functools.wraps(method)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        return check(method, *arguments, **keywords)

    setattr(checked, _MARK, True)
    setattr(kind, name, checked)


def _start(modes_of: Callable[[Any], tuple[str, str]], start: Callable[..., Any], writer: Any, *arguments: Any, **keywords: Any) -> Any:
    """`DataStreamWriter.start`. Raises Refusal for output mode update of the format."""
    given = inspect.signature(start).bind(writer, *arguments, **keywords).arguments
    source, output_mode = modes_of(writer)
    source, output_mode = given.get("format") or source, given.get("outputMode") or output_mode
    if (source.lower(), output_mode.lower()) == (FORMAT, "update"):
        raise invalid(ConfigException(UNUSABLE_OUTPUT_MODE))
    return start(writer, *arguments, **keywords)


def _save(save: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """`DataFrameWriter.save`. Raises Refusal if Spark refuses the save mode."""
    from pyspark.errors import AnalysisException

    try:
        return save(*arguments, **keywords)
    except AnalysisException as error:
        if (text := config_error_of_spark(str(error))) is not None:
            refusal: Refusal = invalid(ConfigException(text))
            raise refusal from None
        raise


def _modes_in_java(writer: Any) -> tuple[str, str]:
    """Format and output mode. Only private fields of the Java class have them; empty if a later Spark names them differently."""
    from py4j.protocol import Py4JJavaError

    found = []
    for name in ("source", "outputMode"):
        try:
            field = writer._jwrite.getClass().getDeclaredField(name)
        except Py4JJavaError:  # Spark will report the error.
            return "", ""
        field.setAccessible(True)
        value = field.get(writer._jwrite)
        found.append(value if isinstance(value, str) else str(value.toString()))
    return found[0], found[1]


def _modes_on_connect(writer: Any) -> tuple[str, str]:
    return writer._write_proto.format, writer._write_proto.output_mode
