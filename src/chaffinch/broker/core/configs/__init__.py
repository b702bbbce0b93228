"""Configs of topics, brokers and groups, as clients list and change them while the broker runs.

Options are defined, and validated, in `options.py`, `topics/topic_options.py` and `groups/group_options.py`.
"""
