"""The composition root: the only package that imports all others. It builds control nodes, farms and
commands."""
