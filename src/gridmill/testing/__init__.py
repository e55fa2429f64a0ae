"""Conformance suites, simulated site, fake clock, fault injection: for everyone who writes adapters."""
