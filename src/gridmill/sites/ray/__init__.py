"""The Ray site: a deployment is a placement group, actors keep pods, one process per site talks to Ray."""
