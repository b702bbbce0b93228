"""Record formats 0 and 1, message sets: read, written, validated, and converted to format 2."""
