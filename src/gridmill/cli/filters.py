"""Which part of a list is shown: those in some states, and how many of the newest."""

from collections.abc import Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from gridmill.errors import InputError
from gridmill.model.state import DeploymentState, RunState
from gridmill.ports.grid import Grid
from gridmill.sdk.lookup import Noun, list_nouns, plural

RECENT = 50
"""Runs that are listed where nobody says how many."""

STATES: dict[Noun, type[StrEnum]] = {Noun.RUN: RunState, Noun.DEPLOYMENT: DeploymentState}
"""Nouns that have states, and these."""

_MEANT = {
    "running": RunState.ACTIVE,
    "done": RunState.SUCCEEDED,
    "success": RunState.SUCCEEDED,
    "completed": RunState.SUCCEEDED,
    "ok": RunState.SUCCEEDED,
    "error": RunState.FAILED,
    "cancelled": RunState.STOPPED,
    "canceled": RunState.STOPPED,
    "killed": RunState.STOPPED,
}
"""Words of other tools for the states of runs."""


_MOST_COUNTED = 10_000
"""Runs that are asked for at once, at most."""


def count(grid: Grid, noun: Noun) -> int:
    """How many of a noun there are; of runs 10,000 at most are counted."""
    return len(grid.runs(limit=_MOST_COUNTED) if noun == Noun.RUN else list_nouns(grid, noun))


def read_states(noun: Noun | None, words: Sequence[str]) -> tuple[Any, ...]:
    """The states of that noun that the words name, commas between them too. Raises InputError."""
    if not words:
        return ()
    kind = STATES.get(noun) if noun is not None else None
    if kind is None:
        raise InputError(f"--state is for {' and '.join(map(plural, STATES))}")
    return tuple(_read(kind, word.strip().lower()) for one in words for word in one.split(","))


def _read(kind: type[StrEnum], word: str) -> StrEnum:
    known = [state.value for state in kind]
    if word in known:
        return kind(word)
    near = [_MEANT[word]] if kind is RunState and word in _MEANT else get_close_matches(word, known, n=1)
    meant = f"; did you mean {str(near[0])!r}?" if near else ""
    raise InputError(f"{word!r} is not a state{meant}", hint=f"The states are {', '.join(known)}.")


def listed(
    grid: Grid, noun: Noun, states: tuple[Any, ...], pipeline: str | None, number: int | None
) -> tuple[tuple[Any, ...], str]:
    """Those to show, and a line about those that are left out. Raises InputError."""
    if noun == Noun.RUN:
        most = RECENT if number is None else number
        found = grid.runs(limit=most + 1, pipeline=pipeline, states=states)
        more = f"these are the newest {most}; `-n {4 * most}` shows more" if len(found) > most else ""
        return found[:most], more
    if pipeline is not None:
        raise InputError("--pipeline is for runs")
    found = list_nouns(grid, noun)
    found = tuple(one for one in found if not states or one.state in states)
    if number is None or len(found) <= number:
        return found, ""
    return found[:number], f"{number} of {len(found)} {plural(noun)}"
