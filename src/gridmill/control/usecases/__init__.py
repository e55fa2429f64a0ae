"""What clients ask of the control node: a module for each noun, joined by `service`."""
