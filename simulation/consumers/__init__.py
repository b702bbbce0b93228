"""Consumer groups: their members, the histories they record, and the checkers of those."""
