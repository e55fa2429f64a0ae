"""The ticks of the control node's loop: each reads the records, decides, commits, then acts."""
