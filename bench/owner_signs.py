"""Shows on real hardware when a sign of the machine's owner is seen, and that nothing else is taken for one.

`python -m bench.owner_signs` looks at this machine as `gridmill join --idle-only` does, joins nothing, and
prints a line for each sign: press a key, move the mouse, log in over SSH, wake the desktop, start a program
that computes, and compare the times. It needs the keyboards' group (`input`) or root to see keys.

`python -m bench.owner_signs --untouched MINUTES` exits 1 at the first sign: start it, leave the machine
alone. Other load that Gridmill starts here meanwhile (a run, a tunnel) must not count.
"""

import argparse
import sys
import time

from gridmill.bootstrap.loose_machines import LocalProvider
from gridmill.cli.join import OwnerWatch
from gridmill.domain.amounts import show_seconds
from gridmill.domain.owner_idle import IdleRules

_AFTER_SECONDS = 10.0


def main(untouched_minutes: float | None) -> int:
    """Until Ctrl-C, or the time is over."""
    machine = LocalProvider()
    watch = OwnerWatch(machine, IdleRules(after_seconds=_AFTER_SECONDS))
    if why := watch.why_blind():
        print(f"not all is seen: {why}")
    is_lent, since = False, time.monotonic()
    while untouched_minutes is None or time.monotonic() - since < untouched_minutes * 60.0:
        wanted, why = watch.look(is_lent=is_lent)
        if wanted and not is_lent:
            print(f"{time.strftime('%T')} it would be lent now", flush=True)
            since = time.monotonic()
        if is_lent and not wanted:
            print(f"{time.strftime('%T')} it would be taken back: {why}", flush=True)
            if untouched_minutes is not None:
                return 1
        is_lent = wanted
    print(f"no sign within {show_seconds(time.monotonic() - since)}")
    return 0 if is_lent else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--untouched", type=float, metavar="MINUTES")
    try:
        sys.exit(main(parser.parse_args().untouched))
    except KeyboardInterrupt:
        sys.exit(0)
