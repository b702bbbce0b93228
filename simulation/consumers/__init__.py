"""Groups of consumers, what their members note, and what must hold of it."""
