"""This package has the use cases of the control node: a module for each kind of record, joined by
`service`."""
