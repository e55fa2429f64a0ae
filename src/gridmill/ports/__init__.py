"""What the core asks of the world. Adapters are reached by name through `gridmill.plugins`."""
