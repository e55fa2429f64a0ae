"""The composition root: it alone knows all packages, and wires control nodes, farms and commands."""
