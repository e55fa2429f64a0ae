"""The steps. A released one is never changed."""
