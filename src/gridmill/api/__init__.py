"""HTTP in, service calls out."""
