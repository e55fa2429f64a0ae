"""A simulated Google Cloud Batch: an HTTP server on this machine whose tasks are processes of this
machine."""
