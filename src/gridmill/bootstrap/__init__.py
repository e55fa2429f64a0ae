"""The composition root: the only package that imports all other packages. The package builds control nodes,
farms and commands."""
