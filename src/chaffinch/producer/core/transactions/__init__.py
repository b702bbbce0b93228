"""Transactions of the producer: state machine, requests, waiting callers, and errors."""
