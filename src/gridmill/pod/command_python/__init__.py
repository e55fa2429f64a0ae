"""A folder on the PYTHONPATH of commands: Python imports `sitecustomize` from it when it starts."""
