"""Steps that ticks and use cases share: begin a run, settle an attempt, cut a job into parts."""
