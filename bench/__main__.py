"""`python -m bench [NAME...]`: measures, each part in a process of its own, then writes docs/benchmarks.md.

Exits 1 when a part could not be measured; never because of what it measured.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress

from bench import table
from bench.measure import LONGEST_SECONDS, REPOSITORY


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in table.MODULES]
    if unknown:
        print(f"there is no {', '.join(unknown)}; there are {', '.join(table.MODULES)}", file=sys.stderr)
        return 2
    failed = [name for name in names or table.MODULES if not measured(name)]
    table.main()
    if failed:
        print(f"could not be measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def measured(name: str) -> bool:
    """Whether that part ran to its end."""
    print(f"-- {name}", flush=True)
    command = (sys.executable, "-m", *table.MODULES[name].split())
    process = subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)
    try:
        return process.wait(LONGEST_SECONDS) == 0
    except subprocess.TimeoutExpired:
        print(f"{name} was ended after {LONGEST_SECONDS / 60:.0f} minutes", file=sys.stderr)
        return False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
