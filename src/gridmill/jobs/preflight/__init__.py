"""Preflight checks jobs against samples of their data before a run. It calls the same code that runs the
jobs."""
