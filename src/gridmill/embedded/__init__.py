"""The embedded control node: a process that the commands of a home share if `gridmill up` is not running."""
