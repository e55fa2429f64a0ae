"""Features at request time: the features of a dataset that a service computes by key from a view of the
sinks."""
