"""Topics: what there is, what they may be called, and their options."""
