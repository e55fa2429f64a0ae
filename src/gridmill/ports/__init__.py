"""Ports: protocols of the services that the core uses; `gridmill.plugins` finds their adapters by name."""
