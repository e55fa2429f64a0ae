"""Ports: protocols of what the core needs from outside; `gridmill.plugins` finds their adapters by name."""
