"""Checks of jobs against samples of their data, by the code that runs them."""
