"""`configure model NAME --alias prod=3`: names for versions."""

import typer

from gridmill.cli.session import emit, session
from gridmill.errors import InputError
from gridmill.model.alias import BEST, Alias, split_reference


def set_aliases(
    context: typer.Context,
    name: str,
    aliases: list[str],
    best_by: str | None,
    expected: int | None,
    as_json: bool,
) -> None:
    """Set them all; the first that cannot be set ends it."""
    if not aliases and best_by is None:
        raise InputError("say what to set", hint="--alias prod=3, or --best-by METRIC.")
    wanted = [(alias, number, "") for alias, number in (read_alias(name, text) for text in aliases)]
    wanted += [(BEST, None, best_by)] if best_by is not None else []
    with session(context) as client:
        kept = [
            client.set_alias(name, alias, number, best_by=metric, expected=expected)
            for alias, number, metric in wanted
        ]
    if as_json:
        return emit(kept)
    for one in kept:
        print(f"{one.id} is {stands_for(one)}")
    return None


def read_alias(name: str, text: str) -> tuple[str, int | None]:
    """`prod=3` (or `prod=PIPELINE/JOB@3`) as alias and number. Raises InputError."""
    alias, _, version = text.partition("=")
    of, number = split_reference(version)
    number = number if of == name else version
    if not number.isdecimal():
        raise InputError(
            f"{text!r} sets no alias", hint=f"Write NAME=VERSION with a version's number: {alias}=3."
        )
    return alias, int(number)


def stands_for(alias: Alias) -> str:
    """`version 3`, or `the best by rmse`."""
    return f"version {alias.number}" if alias.number is not None else f"the best by {alias.metric}"
