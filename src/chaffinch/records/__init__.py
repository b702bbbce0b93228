"""Records as columns, record batches as bytes, and the rules that a broker applies to them.

Nothing here does I/O, and importing it loads neither numba nor pyarrow: both come on first use.
"""
