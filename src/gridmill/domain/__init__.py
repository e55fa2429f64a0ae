"""The nouns: frozen records, and the moves between their states. No I/O, no clock, no randomness."""
