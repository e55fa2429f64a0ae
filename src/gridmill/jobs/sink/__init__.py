"""Sink jobs: tables that are loaded from source files, each file exactly once."""
