"""Preflight checks jobs against samples of their data before a run. Preflight calls the same code that runs
the jobs."""
