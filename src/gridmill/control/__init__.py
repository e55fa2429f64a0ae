"""The control node: use cases and small ticks that communicate only through the store."""
