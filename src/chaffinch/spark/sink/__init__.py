"""The sink as Spark calls it: options, where files lie, and the committing process, which performs what `commit/` decides.

Internal; may change without notice.
"""
