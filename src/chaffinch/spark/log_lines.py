"""Where the sink's log goes in a worker of Spark's, in which nobody configures logging: to its standard error, which Spark shows."""

from __future__ import annotations

import logging
from typing import Final

LOGGER: Final = "chaffinch.spark"
FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def show_log() -> None:
    """From now on lines of level INFO are seen. Changes nothing where somebody has configured logging."""
    logger = logging.getLogger(LOGGER)
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
