"""Side-by-side measurements; each module runs alone (`python -m benchmarks.records`) or all in turn (`make bench`)."""
