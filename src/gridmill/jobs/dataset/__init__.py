"""Dataset jobs: features and labels compiled to one query, with point-in-time correct values."""
