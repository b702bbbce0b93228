"""The package's version, in a module of its own so that lower layers can say it without importing what is above them.

Internal; may change without notice.
"""

VERSION = "0.1.0"
