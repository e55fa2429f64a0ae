"""Sink jobs, which load source files into tables, each file exactly once."""
