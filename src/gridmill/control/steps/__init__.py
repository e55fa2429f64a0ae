"""This package has the steps that ticks and use cases share, such as beginning a run, ending an attempt, or
cutting a job into parts."""
