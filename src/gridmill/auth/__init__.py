"""Secrets: the key of the home, encrypted values, and values on their way to a pod."""
