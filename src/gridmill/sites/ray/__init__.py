"""The Ray site: each deployment is a placement group of Ray, actors supervise the pods, and one process per
site connects to Ray."""
