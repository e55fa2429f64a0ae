"""The control node: use cases (service) and small ticks that meet only in the store."""
