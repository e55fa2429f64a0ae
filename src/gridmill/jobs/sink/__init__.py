"""Sink jobs: tables loaded from source files, each file exactly once."""
