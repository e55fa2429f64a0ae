"""The agent beside the jobs."""
