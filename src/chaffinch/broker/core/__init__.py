"""Broker core: the broker without sockets, clock, threads or random numbers. Requests and the time are passed in, responses come out.

Shells use only `broker_core.BrokerCore`; `events.py` defines its events and effects.
"""
