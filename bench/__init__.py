"""Measurements, side by side in one run: `make bench`. They inform; they never fail a build on time."""
