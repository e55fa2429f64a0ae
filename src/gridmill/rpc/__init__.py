"""Calls use cases from one process to another over a Unix socket. Both processes belong to the same user on
the same machine."""
