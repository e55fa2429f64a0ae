"""The composition root: the only package that knows all others; builds control nodes, farms and commands."""
