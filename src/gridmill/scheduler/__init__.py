"""The scheduler: pure functions from a snapshot to a plan. Depends on the domain only."""
