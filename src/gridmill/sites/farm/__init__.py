"""A remote static cluster: a farm that is dialled over mutual TLS."""
