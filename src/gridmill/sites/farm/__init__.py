"""The site of kind `cluster`: it runs pods on the machines of a farm, and calls the farm over mutual TLS."""
