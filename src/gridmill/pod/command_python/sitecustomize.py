"""What each Python of a command imports when it starts: makes its standard output ready (`gridmill_stdout`).

Pythons of any version import this file, also Python 2, so it has no annotations and imports nothing of
Gridmill's. Afterwards `sys.path` is as it would be without this folder, and the `sitecustomize` that this
file hides is imported, if there is one.
"""

import os
import sys

if __name__ == "sitecustomize":  # imported by Python's `site`, not by Gridmill
    if sys.version_info[:2] >= (3, 8):  # noqa: UP036
        try:  # noqa: SIM105
            __import__("gridmill_stdout").adapt()
        except Exception:  # noqa: BLE001  it runs with the standard output that it has
            pass
    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _folder]
    _own = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError:
        sys.modules.setdefault("sitecustomize", _own)
