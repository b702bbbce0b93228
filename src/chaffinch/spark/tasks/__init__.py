"""Tasks of the sink: check rows, make dead letters of bad ones, and stage or send the others as record batches.

Internal; may change without notice.
"""
