"""Conformance suites, a simulated site, a fake clock and fault injection, for authors of adapters."""
