"""Prediction jobs: a swarm of workers that exists only for the job."""
