"""`show model NAME --trials`: what the search for a model's settings tried."""

from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.cli.session import emit, show_table
from gridmill.errors import InputError
from gridmill.model.amounts import show_number, show_seconds
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.metric import HIGHER_IS_BETTER

Trial = Mapping[str, Any]


def show_trials(found: object, *, as_json: bool) -> None:
    """Print the trials, the best first. Raises InputError for what no search has made."""
    if not isinstance(found, Artifact) or found.kind != ArtifactKind.MODEL:
        raise InputError("--trials is for models", hint="gridmill show model PIPELINE/JOB --trials")
    search = found.output.details.get("search")
    if not search:
        raise InputError(
            f"{found.id} was trained without a search", hint="`search` in a training tries several settings."
        )
    trials = ranked(search["trials"], higher=search["metric"] in HIGHER_IS_BETTER)
    if as_json:
        return emit({**search, "trials": trials})
    names = list(dict.fromkeys(name for trial in trials for name in trial["parameters"]))
    head = ("trial", "state", f"validation {search['metric']}", *names, "took", "")
    show_table(head, [_row(trial, names, search["best"]) for trial in trials])
    return None


def ranked(trials: Sequence[Trial], *, higher: bool) -> list[Trial]:
    """The best first; those without a value last, in the order of their numbers."""

    def place(trial: Trial) -> tuple[bool, float, int]:
        value = trial["value"]
        return value is None, 0.0 if value is None else -value if higher else value, trial["number"]

    return sorted(trials, key=place)


def _row(trial: Trial, names: Sequence[str], best: int) -> tuple[str, ...]:
    value, seconds, state = trial["value"], trial.get("seconds"), str(trial["state"])
    return (
        f"{trial['number']}{' *' if trial['number'] == best else ''}",
        _STATES.get(state, state),
        "" if value is None else show_number(value),
        *(_word(trial["parameters"].get(name)) for name in names),
        "" if seconds is None else show_seconds(seconds),
        trial.get("message") or "",
    )


_STATES = {"complete": "succeeded", "pruned": "ended early", "fail": "failed"}
"""The states of trials in the words for jobs."""


def _word(value: object) -> str:
    return "" if value is None else show_number(value) if isinstance(value, float) else str(value)
