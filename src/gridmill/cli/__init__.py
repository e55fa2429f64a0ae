"""The command line of Gridmill, which calls the Python SDK."""

import gc

# imports create many objects and no garbage; without the collector the start is 10 % faster
gc.set_threshold(20_000, 20, 20)
