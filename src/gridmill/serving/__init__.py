"""The model server: a parent process, and the replicas that answer requests."""
