"""Pure functions from a snapshot to a plan. They know only the domain."""
