"""Records as columns, record batches as bytes, and the validation rules of a broker.

Internal; may change without notice.

Nothing here does I/O. Importing it loads neither numba nor pyarrow; both are loaded on first use.
"""
