"""Source of the format, for batch and streaming reads: offset selection, fetching, and conversion to rows.

Internal; may change without notice.
"""
