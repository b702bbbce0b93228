"""What tasks of the sink do: rows in, bad ones told from good ones, record batches staged or sent."""
