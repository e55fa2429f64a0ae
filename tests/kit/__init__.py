"""Kits of the tests: servers, processes, clusters and texts that several tests share."""
