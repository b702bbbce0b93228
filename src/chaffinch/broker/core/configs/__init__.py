"""Configs of topics, brokers and groups, as clients list and change them while the broker runs."""
