"""NEW PACKAGE gridmill.control.ticks."""
