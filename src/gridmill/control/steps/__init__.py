"""NEW PACKAGE gridmill.control.steps."""
