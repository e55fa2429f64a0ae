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
_SAID = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_SPINS = {"GOMP_SPINCOUNT": "30000"}
"""How often a thread of libgomp (PyTorch, scikit-learn, XGBoost) looks whether there is more to do before it
sleeps: about 0.1 ms long; the library's own 300,000 are a millisecond. Where others use the processors too,
that is time taken from the thread that is waited for: a small LSTM took 24 s instead of 2, and on processors
of its own as long either way (libgomp's manual, "GOMP_SPINCOUNT")."""


def thread_environment(cpus: float, base: Mapping[str, str]) -> Mapping[str, str]:
    """One thread per whole CPU, at least one; those that wait do not keep others from working, unless the
    machine's own environment says how they are to wait."""
    spins = {name: base[name] for name in _SAID if name in base} or _SPINS
    return dict.fromkeys(VARIABLES, str(max(1, int(cpus)))) | spins
