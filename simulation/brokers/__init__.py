"""Simulated broker process: its disk, and variants that send wrong responses or validate in a different order."""
