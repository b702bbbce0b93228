"""One file per API: its request, its response and their nested structures, described once for all versions."""
