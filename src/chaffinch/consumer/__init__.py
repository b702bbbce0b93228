"""Kafka consumer: `core/` is the state machine without I/O, `consumer.py` the public class, `consumer_thread.py` runs the network.

Internal; may change without notice.
"""
