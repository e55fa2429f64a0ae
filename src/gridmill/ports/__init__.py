"""This package has the interfaces (in hexagonal architecture: ports) of the services that the core uses.
`gridmill.plugins` finds the adapters, which implement these interfaces, by their names."""
