"""Topics: registry, naming rules and options."""
