"""Groups of consumers: both protocols, committed offsets, and who owns which partition."""
