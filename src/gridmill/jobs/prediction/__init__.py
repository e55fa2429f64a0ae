"""Prediction jobs: several worker processes, which exist only for the job, predict the rows of a dataset."""
