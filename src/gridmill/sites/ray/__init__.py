"""The Ray site: a deployment is a placement group, actors supervise pods, one process per site connects to
Ray."""
