"""This package is the control node: use cases and short ticks that communicate only through the store."""
