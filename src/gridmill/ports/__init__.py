"""This package has the ports: the protocols of the services that the core uses. `gridmill.plugins` finds the
adapters that implement the ports by their names."""
