"""The farm: a light Gridmill on GPU servers that runs jobs of other homes (its tenants)."""
