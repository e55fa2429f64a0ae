"""The control node that commands of a home share where `gridmill up` does not run: a process of its own."""
