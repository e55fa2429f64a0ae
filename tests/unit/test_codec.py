"""Records are decoded by several threads."""

import subprocess
import sys

SCRIPT = """
import dataclasses, importlib, pkgutil, sys, threading
import gridmill.domain
from gridmill.codec import decode, from_builtins
from gridmill.errors import InputError

sys.setswitchinterval(1e-6)
names = [f"gridmill.domain.{one.name}" for one in pkgutil.iter_modules(gridmill.domain.__path__)]
members = [(name, one) for name in names for one in vars(importlib.import_module(name)).values()]
kinds = [one for name, one in members if dataclasses.is_dataclass(one) and one.__module__ == name]
assert len(kinds) > 100
barrier = threading.Barrier(8)

def decode_all(number):
    barrier.wait()
    for kind in kinds:
        try:
            decode(b"{}", kind) if number % 2 else from_builtins({}, kind)
        except (InputError, NameError, TypeError):  # it needs fields, or msgspec cannot decode it
            pass

threads = [threading.Thread(target=decode_all, args=(number,)) for number in range(8)]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""


def test_threads_that_decode_a_class_for_the_first_time_do_not_end_the_process() -> None:
    for _ in range(3):
        run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
