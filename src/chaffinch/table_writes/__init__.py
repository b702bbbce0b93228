"""Exactly-once writes of tables without Spark: `chaffinch.write_table`.

Internal; may change without notice.
"""
