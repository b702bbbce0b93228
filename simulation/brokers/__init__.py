"""Simulated broker process: its disk, and variants that give wrong answers or validate in another order."""
