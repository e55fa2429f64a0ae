"""The common code of all HTTP APIs of Gridmill: error responses, and the server."""
