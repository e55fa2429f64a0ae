"""Stores: in memory, and over SQL databases."""
