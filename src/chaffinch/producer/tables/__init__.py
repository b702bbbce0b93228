"""`send_table`: Arrow tables to record batches, and the outcome of each row."""
