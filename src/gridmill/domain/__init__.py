"""The nouns: frozen dataclasses of the standard library. No I/O, no clock, no randomness."""
