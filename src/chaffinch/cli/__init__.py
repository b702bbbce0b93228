"""The command line: `main.py` finds a sub-command in its table and loads only that one.

Internal; may change without notice.
"""
