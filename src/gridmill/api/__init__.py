"""The REST API: HTTP requests become calls of the use cases."""
