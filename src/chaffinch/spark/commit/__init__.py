"""The commit of one micro-batch: what it asks for, in which order, and what the answers mean. No I/O, nothing of Spark.

Internal; may change without notice.
"""
