"""Expands a job that has a `matrix` into one job for each combination of the matrix values. The names of the
new jobs contain the matrix values."""

import re
from collections.abc import Mapping
from itertools import product

from gridmill.declarations.problems import FieldPath, Problem
from gridmill.declarations.yaml import Value, YamlDocument, YamlFloat, YamlInteger, YamlList, YamlMapping

MOST_JOBS = 256
"""The largest number of jobs that one matrix can make."""
_UNFIT = re.compile(r"[^a-z0-9]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LISTS = ("models",)
"""The fields of each kind of job that contain names of jobs, in addition to `needs`."""

Single = str | YamlInteger | YamlFloat | bool
Own = Mapping[str, Single]
"""The values of one combination of a matrix."""


def is_matrix(value: Value) -> bool:
    """Returns True if the `matrix` of a job can be expanded. If the `matrix` cannot be expanded, its values
    are refused later, with the errors of their fields."""
    return isinstance(value, YamlMapping) and bool(value)


def expand_jobs(
    document: YamlDocument, jobs: YamlMapping, matrices: Mapping[str, Value]
) -> tuple[dict[str, tuple[str, Value, Own]], list[Problem]]:
    """Returns all jobs by name, and the problems of matrices. The name of each job of a matrix consists of
    the name in the declaration and the values of the combination. A job that needs a job with a matrix needs
    all jobs of this matrix.
    """
    problems: list[Problem] = []
    combinations = {
        name: _combinations(document, name, matrix, problems)
        for name, matrix in matrices.items()
        if isinstance(matrix, YamlMapping)
    }
    names = {name: _names(document, jobs, name, of, problems) for name, of in combinations.items()}
    expanded: dict[str, tuple[str, Value, Own]] = {}
    for name, job in jobs.items():
        job = _with_all(job, names)
        if name not in names or not isinstance(job, YamlMapping):
            expanded[name] = (name, job, {})
            continue
        for own, one in zip(combinations[name], names[name], strict=True):
            values = YamlMapping(job.line)
            values.update(own)
            expanded[one] = (name, _with(job, {"matrix": values}), own)
    return expanded, problems


def _combinations(
    document: YamlDocument, job: str, matrix: YamlMapping, problems: list[Problem]
) -> list[dict[str, Single]]:
    at: FieldPath = ("jobs", job, "matrix")
    lists: dict[str, list[Single]] = {}
    for name, value in matrix.items():
        values: list[Value] = list(value) if isinstance(value, YamlList) else [value]
        if not _NAME.fullmatch(name):
            message = "a parameter's name can contain only letters, digits, _ and -"
            problems.append(document.problem((*at, name), message))
        elif not values or not all(isinstance(one, Single) for one in values):
            message = f"`{name}` needs a list of texts, numbers, true or false"
            problems.append(document.problem((*at, name), message, "For example matrix: {region: [eu, us]}."))
        else:
            lists[name] = [one for one in values if isinstance(one, Single)]
    count = 1
    for several in lists.values():
        count *= len(several)
    if count > MOST_JOBS:
        message = f"this matrix has {count} jobs; the limit is {MOST_JOBS}"
        problems.append(
            document.problem(at, message, "Shorten its lists, or split the jobs into several pipelines.")
        )
        return [{name: several[0] for name, several in lists.items()}]
    return [dict(zip(lists, chosen, strict=True)) for chosen in product(*lists.values())]


def _names(
    document: YamlDocument, jobs: YamlMapping, job: str, of: list[dict[str, Single]], problems: list[Problem]
) -> list[str]:
    """Returns the names of the jobs of a matrix, such as `train-eu-a`, in the order of the combinations."""
    names = ["-".join([job, *(_word(value) for value in own.values())]) for own in of]
    for number, name in enumerate(names):
        if name in names[:number] or name in jobs:
            message = f"two jobs would have the name `{name}`"
            hint = (
                "Rename the other job, or use values that differ in letters or digits, not only in "
                "upper and lower case or in signs."
            )
            problems.append(document.problem(("jobs", job, "matrix"), message, hint))
            return [f"{job}-{number}" for number in range(len(names))]
    return names


def _word(value: Single) -> str:
    """Returns the form that a value has in the name of a job."""
    text = str(value).lower() if isinstance(value, str | bool) else value.text.lower()
    return _UNFIT.sub("-", text).strip("-") or "x"


def _with_all(job: Value, names: Mapping[str, list[str]]) -> Value:
    """Returns the job after replacing the name of each job that has a matrix with the names of all jobs of
    the matrix."""
    if not isinstance(job, YamlMapping):
        return job
    changed: dict[str, Value] = {}
    if "needs" in job:
        changed["needs"] = _all_of(job["needs"], names)
    for kind, inner in job.items():
        if isinstance(inner, YamlMapping):
            lists = {field: _all_of(inner[field], names) for field in _LISTS if field in inner}
            if lists:
                changed[kind] = _with(inner, lists)
    return _with(job, changed) if changed else job


def _all_of(value: Value, names: Mapping[str, list[str]]) -> Value:
    if isinstance(value, str) and value in names:
        word, value = value, YamlList(0)
        value.append(word)
    if not isinstance(value, YamlList) or not any(isinstance(one, str) and one in names for one in value):
        return value
    items = YamlList(value.line)
    for number, one in enumerate(value):
        for name in names.get(one, [one]) if isinstance(one, str) else [one]:
            items.lines[len(items)] = value.lines.get(number, value.line)
            items.append(name)
    return items


def _with(fields: YamlMapping, items: Mapping[str, Value]) -> YamlMapping:
    made = YamlMapping(fields.line)
    made.lines = dict(fields.lines)
    made.update({**fields, **items})
    return made
