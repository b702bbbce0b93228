"""The package's version, in a module of its own so that lower layers can say it without importing what is above them."""

VERSION = "0.1.0"
