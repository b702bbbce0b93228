"""Durable state: logs of record batches over one small file system interface (decision 34)."""
