"""The embedded control node: a process that commands of a home share if `gridmill up` does not run."""
