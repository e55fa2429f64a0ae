"""This package has the domain model: frozen records, and the transitions between their states. The modules
of the domain use no I/O, no clock and no randomness."""
