"""Dataset jobs: features and labels compiled to one query, point-in-time correct."""
