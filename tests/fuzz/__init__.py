"""Random cases against independent computations: seeded, resumable, as many as there is time for."""
