"""Sink jobs load source files into tables, each file exactly once."""
