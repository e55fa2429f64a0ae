"""What every HTTP API of Gridmill's shares: how errors are answered, and how it is served."""
