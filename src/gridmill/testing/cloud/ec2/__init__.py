"""A simulated Amazon EC2: an HTTP server on this machine that has the interface of EC2, STS, IAM, Service
Quotas and the Price List, written from the public documentation of AWS."""
