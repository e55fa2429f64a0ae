"""The environment variables by which libraries learn how many threads to start."""

from collections.abc import Mapping

VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
)


def thread_environment(cpus: float) -> Mapping[str, str]:
    """One thread per whole CPU, at least one."""
    return dict.fromkeys(VARIABLES, str(max(1, int(cpus))))
