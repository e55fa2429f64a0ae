"""Sinks: tables loaded from source files, each file exactly once."""
