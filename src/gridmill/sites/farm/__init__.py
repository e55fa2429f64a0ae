"""The farm site: pods on the machines of a farm, which is called over mutual TLS."""
