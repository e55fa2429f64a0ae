"""The command line, which uses the SDK."""

import gc

gc.set_threshold(20_000, 20, 20)  # imports make many objects and no garbage: a tenth of the start-up saved
