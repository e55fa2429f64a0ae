"""A farm of other machines as a site: it is called over mutual TLS."""
