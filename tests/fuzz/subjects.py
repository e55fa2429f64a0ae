"""The subjects that random cases are drawn for.

A case is a function of a seed and an empty folder. It raises an error if results differ.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

Case = Callable[[int, Path], None]
"""One random case: the same seed always makes the same case."""

SUBJECTS: dict[str, str] = {
    "datasets": "tests.oracles.dataset_cases:case",
    "files": "tests.oracles.file_cases:case",
    "fingerprints": "tests.oracles.fingerprint_cases:case",
    "forms": "tests.oracles.form_cases:case",
    "http": "tests.oracles.remote_cases:http_case",
    "left-outputs": "tests.fuzz.left_outputs:case",
    "mariadb": "tests.oracles.database_cases:mariadb",
    "model-files": "tests.fuzz.model_files:case",
    "nasty-columns": "tests.fuzz.nasty_columns:case",
    "objects": "tests.oracles.remote_cases:objects_case",
    "pipelines": "tests.oracles.pipeline_cases:case",
    "plans": "tests.fuzz.plans:case",
    "postgresql": "tests.oracles.database_cases:postgresql",
    "redis": "tests.oracles.stream_cases:case",
    "schedules": "tests.oracles.clock_cases:case",
    "sqlite": "tests.oracles.database_cases:sqlite",
}
"""Name -> "module:function". A module is imported only when its subject is tried."""


def case_of(subject: str) -> Case:
    """Return the function that tries one seed of a subject."""
    module, _, function = SUBJECTS[subject].partition(":")
    case: Case = getattr(import_module(module), function)
    return case
