"""The consumer: `core/` decides, free of I/O; `consumer.py` is what users call, `consumer_thread.py` moves the bytes meanwhile."""
