"""The migration steps. A released step is never changed."""
