"""The broker's process of a simulated world: its disk, and brokers that lie or check in another order."""
