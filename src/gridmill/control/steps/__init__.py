"""Steps that ticks and use cases share, such as beginning a run, ending an attempt, cutting a job."""
