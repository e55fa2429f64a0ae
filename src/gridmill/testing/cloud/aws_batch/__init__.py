"""A simulated AWS Batch: an HTTP server on this machine whose jobs are processes of this machine."""
