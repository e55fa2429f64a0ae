"""What removing versions would take away, and what stands against it."""

from collections.abc import Iterator, Sequence

from gridmill.control.lineage import users_of
from gridmill.control.references import aliases_of, fetch_artifact, versions_of
from gridmill.control.state import Control
from gridmill.errors import ConflictError, InputError, NotFoundError
from gridmill.model.alias import split_reference
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.view import Removal


def plan_removal(
    control: Control, reference: str, *, of_table: bool = False
) -> tuple[Removal, tuple[Artifact, ...]]:
    """The versions a reference names for removal (`pipeline/job`: all) and what stands against it.

    With `of_table` also one of several versions of a sink: the table stays, and what only that version had
    in it goes with a later load. Raises InputError for an alias, NotFoundError, and without it ConflictError
    for one of several versions of a sink.
    """
    name, version = split_reference(reference)
    if version and not version.isdecimal():
        raise InputError(
            f"{version!r} is a name for a version, not a version",
            hint=f"`gridmill remove alias {reference}` removes the name; "
            f"`gridmill show artifact {reference}` says which version it stands for.",
        )
    wanted = (fetch_artifact(control, f"{name}@{int(version)}"),) if version else _all(control, name)
    if version and wanted[0].kind == ArtifactKind.SINK and not wanted[0].removed and not of_table:
        raise ConflictError(
            f"{wanted[0].id} is one version of a table that its other versions share",
            hint=f"`gridmill remove sink {name}` removes the whole table.",
        )
    there = [one for one in wanted if not one.removed]
    ids = {one.id for one in there}
    plan = Removal(
        versions=tuple(one.id for one in wanted),
        size_bytes=_size(there),
        aliases=tuple(a.id for a in aliases_of(control, name) if f"{name}@{a.number}" in ids or not version),
        used_by=tuple(one.id for one in users_of(control, ids) if one.id not in ids) if ids else (),
        running=tuple(dict.fromkeys(running(control, name))) if ids else (),
        gone=not there,
    )
    return plan, wanted


def _all(control: Control, name: str) -> tuple[Artifact, ...]:
    """Those that are there; where none is, those that were: a crash may have left their files."""
    there = versions_of(control, name)
    if there:
        return there
    records = control.ledger.store.list(Artifact, parent=name)
    gone = tuple(record.noun for record in records if isinstance(record.noun, Artifact))
    if not gone:
        raise NotFoundError(f"there is no {name!r}", hint="`gridmill list artifacts` shows what there is.")
    return gone


def _size(versions: Sequence[Artifact]) -> int:
    """Versions of one sink share a table: the newest has the size of all."""
    tables = versions[:1] if versions and versions[0].kind == ArtifactKind.SINK else versions
    return sum(one.output.size_bytes for one in tables)


def running(control: Control, name: str) -> Iterator[str]:
    """Active runs of its pipeline, or of one whose jobs read it."""
    for job_run in control.ledger.snapshot.job_runs.values():
        read = {split_reference(reference)[0] for reference in job_run.job.external_names}
        if job_run.pipeline == name.partition("/")[0] or name in read:
            yield job_run.run_id


def check_removal(plan: Removal, *, force: bool) -> None:
    """Raise ConflictError where a run may be using it; without `force` also where anything refers to it."""
    what = plan.versions[0] if len(plan.versions) == 1 else f"{plan.versions[-1]} ... {plan.versions[0]}"
    if plan.running:
        raise ConflictError(
            f"run {plan.running[0]} may be using {what}",
            hint=f"Wait for its end, or `gridmill stop {plan.running[0]}`.",
        )
    if plan.aliases and not force:
        raise ConflictError(
            f"{what} is what {plan.aliases[0]!r} stands for",
            hint=f"Move the alias to another version, or `gridmill remove alias {plan.aliases[0]}`; "
            "--force removes it too.",
        )
    if plan.used_by and not force:
        more = f" and {len(plan.used_by) - 1} more" if len(plan.used_by) > 1 else ""
        raise ConflictError(
            f"{plan.used_by[0]}{more} {'were' if more else 'was'} made from {what}",
            hint="Remove these first, or --force: they stay, and what they were made from is known but gone.",
        )


def removed_uris(control: Control, versions: Sequence[Artifact]) -> Iterator[str]:
    """What lies in storage for versions that were removed, and for no other."""
    for one in versions:
        kept = {other.output.uri for other in versions_of(control, one.name)}
        uri = one.output.uri
        if uri and uri not in kept:
            yield uri.rpartition("/")[0] if one.kind == ArtifactKind.SINK and not kept else uri
