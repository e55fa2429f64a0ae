"""What lasts as long as the process: closed when a session of tests ends, or else the process."""

import atexit
from contextlib import ExitStack

STACK = ExitStack()
atexit.register(STACK.close)
