"""Preflight: checks jobs against samples of their data, with the code that runs them."""
