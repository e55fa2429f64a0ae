"""Compute Engine of Google Cloud."""
