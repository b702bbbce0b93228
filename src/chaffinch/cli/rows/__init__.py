"""Rows of files and of standard input, as records and back: lines, JSON, CSV, Parquet, Arrow; and what was rejected of them."""
