"""Conformance suites, simulated site, fake clock, fault injection: for all who write adapters."""
