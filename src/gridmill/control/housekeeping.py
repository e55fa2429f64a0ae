"""Use cases of housekeeping: what takes space, and taking away what nobody needs."""

from contextlib import suppress

from gridmill.control.forgetting import forget, old_history
from gridmill.control.versions import VersionCases
from gridmill.control.waste import old_runs, old_versions, read_records, rubbish
from gridmill.errors import ConflictError
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.retention import DAY_SECONDS
from gridmill.model.space import HISTORY_DAYS, Usage, Waste
from gridmill.ports.house import Place, Thing

_RUNS_AT_ONCE = 100


class HousekeepingCases(VersionCases):
    """What may be asked about space."""

    def usage(self) -> tuple[Usage, ...]:
        """What takes space on the disk: versions, records, folders of pods, caches."""
        things = self._control.house.things()
        records = read_records(self._control)
        owners: dict[str, list[str]] = {}
        for one in records.artifacts:
            if not one.removed:
                owners.setdefault(one.output.uri, []).append(one.id)
        return tuple(_usage(thing, owners) for thing in things)

    def clean(self, *, days: float = HISTORY_DAYS, dry_run: bool = False) -> tuple[Waste, ...]:
        """Take away what can go; what that is. May be repeated, and cut short anywhere."""
        control = self._control
        things = control.house.things()  # before the records: what is made meanwhile is not among them
        with self._node.lock:
            now = control.now()
            before = now - days * DAY_SECONDS
            records = read_records(control)
            versions = old_versions(control, records, now)
            runs = tuple(old_runs(control, records, before))
            found = tuple(rubbish(control, records, things, now, before))
            if not dry_run:
                for _, thing in found:
                    control.house.set_aside(thing)
        lying = frozenset(thing.name for thing in things if thing.place == Place.OUTPUT)
        history = old_history(self._ledger.store, records, before, lying)
        if not dry_run:
            gone = [thing for _, thing in found]
            self._take_away(gone, [one.id for one in versions], runs)
            forget(self._ledger.store, history, goes_on=lambda: not self._node.ending)
        return (
            *(_old(one) for one in versions),
            *(Waste(kind="events", name=run, why=f"its run ended over {days:g} days ago") for run in runs),
            *history.told(days),
            *(waste for waste, _ in found),
        )

    def _take_away(self, things: list[Thing], versions: list[str], runs: tuple[str, ...]) -> None:
        for version in versions:
            with suppress(ConflictError):  # a run has begun to use it, or an alias stands for it, meanwhile
                self._remove(version, of_table=True)
        for first in range(0, len(runs), _RUNS_AT_ONCE):
            self._ledger.store.drop_events(runs[first : first + _RUNS_AT_ONCE])
        for thing in things:
            self._control.house.take_away(thing)


def _old(version: Artifact) -> Waste:
    """The files of a sink's version are its table's: a later load takes away what no version needs."""
    size = 0 if version.kind == ArtifactKind.SINK else version.output.size_bytes
    return Waste(kind="version", name=version.id, why="beyond what its job retains", size_bytes=size)


def _usage(thing: Thing, owners: dict[str, list[str]]) -> Usage:
    if thing.place != Place.OUTPUT:
        return Usage(kind=thing.place.value, name=thing.name, size_bytes=thing.size_bytes)
    kind, pipeline, job, _ = thing.name.split("/", 3)
    versions = owners.get(thing.name, [])
    return Usage(
        kind=kind,
        name=thing.name,
        size_bytes=thing.size_bytes,
        job=f"{pipeline}/{job}",
        version=versions[0] if len(versions) == 1 else "",
    )
