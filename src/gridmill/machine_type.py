"""Names the type of this machine, so that times of another type of machine are not used for it."""

import os
import platform
from functools import cache
from pathlib import Path

from gridmill.domain.amounts import show_count


@cache
def machine_type() -> str:
    """Return the model and the number of the CPUs, such as `AMD EPYC 7B12, 8 CPUs`."""
    return f"{_model()}, {show_count(os.cpu_count() or 1, 'CPU')}"


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
