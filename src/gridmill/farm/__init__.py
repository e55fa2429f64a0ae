"""A farm: a light Gridmill on GPU servers, where jobs of others run."""
