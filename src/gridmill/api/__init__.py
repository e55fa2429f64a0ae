"""The REST API converts HTTP requests into calls of the use cases."""
