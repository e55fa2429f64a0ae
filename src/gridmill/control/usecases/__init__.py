"""NEW PACKAGE gridmill.control.usecases."""
