"""Calls of use cases between processes of one user on one machine, over a Unix socket."""
