"""Prediction: a swarm of workers that exists for the job only."""
