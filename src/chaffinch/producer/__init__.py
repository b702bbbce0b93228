"""The producer: records in, batches out, every record's outcome back exactly once.

`core` decides and does no I/O; `sender_thread` and `producer` are the shell that users see. Import names from `chaffinch`.
"""
