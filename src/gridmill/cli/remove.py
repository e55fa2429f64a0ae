"""The command `remove` deletes a record of any kind after checking that no other record depends on it."""

from typing import Annotated

import typer

from gridmill.cli.completion import complete_names, complete_nouns
from gridmill.cli.secrets import remove_secret
from gridmill.cli.service_keys import remove_key
from gridmill.cli.session import Json, emit, session
from gridmill.domain.amounts import show_bytes, show_count
from gridmill.domain.views import RemovalPreview
from gridmill.errors import InputError
from gridmill.sdk.lookup import ARTIFACTS, REMOVED, Noun, find_noun, read_noun, remove_noun

KEY = "key"
"""The word for an API key of a service, which is not a record of its own."""
Removed = Annotated[
    str,
    typer.Argument(
        metavar="NOUN",
        help=f"One of {', '.join((*REMOVED, KEY, *sorted(ARTIFACTS)))}.",
        autocompletion=complete_nouns,
        show_default=False,
    ),
]


def remove(
    context: typer.Context,
    noun: Removed,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name or id.", show_default=False, autocompletion=complete_names),
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also delete a version to which an alias or another version refers, or a secret in use.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show which versions or runs would be deleted and what prevents it. Delete nothing.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Delete a resource, site, project, pipeline, alias, secret, run or version, or release a deployment.

    `gridmill remove model weather/lstm@3` deletes one version, and `gridmill remove model weather/lstm`
    deletes all versions of the model. A version that an active run may use is never deleted. `gridmill
    remove run weather-3` deletes a finished run with its logs and its report. The versions that the run made
    are not deleted. `gridmill remove key SERVICE/NAME` deletes an API key of a service.
    """
    if noun == KEY:
        return remove_key(context, name, json)
    kind = read_noun(noun)
    if kind == Noun.RUN and not force:
        return _remove_run(context, name, dry_run, json)
    if kind in ARTIFACTS:
        return _remove_versions(context, kind, name, force, dry_run, json)
    if kind == Noun.SECRET and not dry_run:
        return remove_secret(context, name, force, json)
    if force or dry_run:
        raise InputError(
            "--force works only with versions and secrets, --dry-run only with versions and runs",
            hint=f"Without these options: gridmill remove {kind} {name}",
        )
    with session(context) as client:
        remove_noun(client.grid, kind, name)
    return emit({"removed": name}) if json else print(f"{kind} {name} removed")


def _remove_run(context: typer.Context, name: str, dry_run: bool, as_json: bool) -> None:
    with session(context, reading=dry_run) as client:
        plan = client.remove_run(name, dry_run=dry_run)
    if as_json:
        return emit(plan)
    verb = "would be removed" if dry_run else "removed"
    parts = (show_count(plan.jobs, "job"), show_count(plan.attempts, "attempt"), show_bytes(plan.size_bytes))
    print(f"run {plan.run} {verb}: {parts[0]}, {parts[1]}, {parts[2]} of files, and its logs")
    if plan.versions:
        print(f"versions of the run that are kept: {', '.join(plan.versions)}")


def _remove_versions(
    context: typer.Context, kind: Noun, name: str, force: bool, dry_run: bool, as_json: bool
) -> None:
    with session(context, reading=dry_run) as client:
        plan = client.remove_artifact(name, dry_run=True)
        if kind != Noun.ARTIFACT:
            # called for its error, because the version must be of the kind that the user named
            find_noun(client.grid, kind, plan.versions[0])
        if not dry_run:
            plan = client.remove_artifact(name, force=force)
    if as_json:
        return emit(plan if dry_run else {"removed": name, "versions": plan.versions})
    return print("\n".join(_removal_lines(plan, "would be removed" if dry_run else "removed")))


def _removal_lines(plan: RemovalPreview, verb: str) -> list[str]:
    listed = ", ".join(reversed(plan.versions))
    if plan.already_removed:
        return [f"removed already: {listed}"]
    lines = [f"{show_count(len(plan.versions), 'version')} {verb}, {show_bytes(plan.size_bytes)}: {listed}"]
    if plan.aliases:
        lines.append(f"aliases that refer to these versions: {', '.join(plan.aliases)}")
    if plan.used_by:
        lines.append(f"versions that were made from these versions: {', '.join(plan.used_by)}")
    if plan.running:
        lines.append(f"active runs that may use these versions: {', '.join(plan.running)}")
    return lines
