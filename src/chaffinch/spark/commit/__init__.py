"""The commit of one micro-batch: its requests, their order, and the meaning of the responses. No I/O, no Spark.

Internal; may change without notice.
"""
