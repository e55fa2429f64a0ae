"""Simulated cloud providers for tests. Providers of other packages can be tested with them too."""
