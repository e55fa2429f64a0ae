"""This package has the ticks of the control node's loop: each tick reads the records, decides, commits, then
acts."""
