"""A simulated Lambda Cloud: an HTTP server on this machine that has the interface of the Lambda Cloud API,
written from the public documentation of Lambda."""
