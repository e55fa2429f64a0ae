"""A simulated Google Compute Engine: an HTTP server on this machine that has the interface of Compute Engine,
of Google's OAuth 2.0 token endpoint, and of the parts of Resource Manager and Cloud Billing that programs
need to rent machines. It was written from the public documentation of Google."""
