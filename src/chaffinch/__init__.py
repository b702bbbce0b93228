"""Chaffinch: precise Kafka writes from Python and Spark."""
