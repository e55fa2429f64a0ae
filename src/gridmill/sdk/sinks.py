"""The verbs of sinks: what is altered about them, and how their tables stand."""

from gridmill.model.alteration import Alterations, AlterVerb, Change, SinkPart, key_of_constraint
from gridmill.model.constraint import Constraint
from gridmill.model.outage import Outage
from gridmill.model.task import LoadTask
from gridmill.sdk.connected import Connected


class SinkVerbs(Connected):
    """The verbs of sinks."""

    def list_alterations(self, name: str | None = None) -> tuple[Alterations, ...]:
        """What was altered of one sink (`pipeline/job`) or of all."""
        return self.grid.alterations(name=name)

    def list_load_tasks(self, name: str | None = None) -> tuple[LoadTask, ...]:
        """How each source of one sink (`pipeline/job`) or of all stands: rows, position, next look."""
        return self.grid.load_tasks(name=name)

    def add_to_sink(self, name: str, part: Constraint | Outage | str, *, metric: str = "") -> Alterations:
        """Add a constraint, an outage, a source (its path), or with `metric` a metric (its SQL).

        It holds for the runs that start from now on, until it is removed.
        """
        return self.grid.alter_sink(name, change_of(AlterVerb.ADD, part, metric))

    def remove_from_sink(self, name: str, part: SinkPart | str, key: str) -> Alterations:
        """Remove a part by its key: a source's path, what a constraint's reason says, a metric's name, an
        outage's beginning."""
        return self.grid.alter_sink(name, Change(verb=AlterVerb.REMOVE, part=SinkPart(part), key=key))


def change_of(verb: AlterVerb, part: Constraint | Outage | str, metric: str = "") -> Change:
    """The change that adds or removes a part."""
    match part:
        case Constraint():
            part.check()
            return Change(verb=verb, part=SinkPart.CONSTRAINT, key=key_of_constraint(part), constraint=part)
        case Outage():
            part.check()
            return Change(verb=verb, part=SinkPart.OUTAGE_WINDOW, key=part.begins, outage=part)
    if metric:
        return Change(verb=verb, part=SinkPart.METRIC, key=metric, text=part)
    return Change(verb=verb, part=SinkPart.SOURCE, key=part)
