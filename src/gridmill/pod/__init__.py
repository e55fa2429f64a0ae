"""The pod: the agent process that supervises jobs."""
