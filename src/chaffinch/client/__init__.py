"""What every client side shares: who leads what, who coordinates whom, when to try again, and the connections.

Everything here is free of I/O but `network.py`, which owns the sockets, and `client_thread.py` and `sync_client.py`, which drive it.
"""
