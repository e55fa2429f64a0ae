"""The pod: the agent process that starts and supervises jobs."""
