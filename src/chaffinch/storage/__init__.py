"""Storage engine of the broker: logs of record batches, and journals, over one small file system interface (decision 34)."""
