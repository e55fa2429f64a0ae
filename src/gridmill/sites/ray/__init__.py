"""Ray: a deployment is a placement group, actors keep the pods, one process per site speaks to Ray."""
