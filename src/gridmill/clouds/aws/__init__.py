"""EC2 of Amazon Web Services."""
