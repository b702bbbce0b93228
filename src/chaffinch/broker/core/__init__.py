"""The broker without sockets, clock, threads or dice: requests and the time go in, answers come out.

`broker_core.BrokerCore` is the only object a shell talks to; `events.py` says in which words.
"""
