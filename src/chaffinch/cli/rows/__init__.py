"""File formats of `produce` and `consume` (lines, JSON, CSV, Parquet, Arrow), and files of rejected rows."""
