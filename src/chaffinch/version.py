"""The package's version, in a module of its own so that lower layers can say it without importing what is above them."""

from typing import Final

VERSION: Final = "0.1.0"
