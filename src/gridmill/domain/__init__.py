"""The domain model: frozen records and the transitions between their states. No I/O, clock or randomness."""
