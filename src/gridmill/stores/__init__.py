"""Record stores: one in memory, and others over SQL databases."""
