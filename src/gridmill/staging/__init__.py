"""Carrying files: what is there already does not travel again."""
