"""The sink as Spark calls it: options, where files lie, and the committing process, which performs the operations of `commit/`.

Internal; may change without notice.
"""
