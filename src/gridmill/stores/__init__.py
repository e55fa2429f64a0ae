"""Record stores: a store in memory, and stores over SQL databases."""
