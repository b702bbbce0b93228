"""`send_table`: columns to record batches, and what became of the rows."""
