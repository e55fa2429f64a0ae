"""Prediction jobs: several worker processes, which are started for a single job, predict the rows of a
dataset."""
