"""A request to the simulated EC2 that was read and is allowed."""

from collections.abc import Mapping, Sequence
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.ec2.records import Instance, Principal
from gridmill.testing.cloud.ec2.refusal import RefusalError, not_simulated
from gridmill.testing.cloud.ec2.world import Region, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request. `now` is the time at which it has its effect, and `as_of` the time whose state a list
    shows."""

    world: World
    region: Region
    action: str
    parameters: Mapping[str, Any]
    principal: Principal
    now: float
    as_of: float

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  the type is that of the parameter
        """Returns a parameter."""
        return self.parameters.get(name, default)

    def allow_only(self, *names: str) -> None:
        """Raises RefusalError if the request has a parameter that is not named here."""
        for name in self.parameters:
            if name not in names and name != "DryRun":
                raise not_simulated(f"the parameter {name} of {self.action}")

    def visible(self, record: Any) -> bool:  # noqa: ANN401  any record with `visible_from`
        """Returns whether a new resource can be seen already."""
        return bool(record.visible_from <= self.now)

    def instances_named(self, ids: Sequence[str], as_of: float) -> list[Instance]:
        """Returns the instances with the given ids as they were at a time. Raises RefusalError if one of them
        is unknown, which an instance also is for some time after its launch.

        Source: https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html
        """
        found, unknown = [], []
        for one in ids:
            if not one.startswith("i-") or not 10 <= len(one) <= 19:
                raise RefusalError("InvalidInstanceID.Malformed", f'Invalid id: "{one[:60]}"')
            instance = self.region.instances.get(one, as_of)
            listed = instance is not None and self.visible(instance)
            if instance is None or not listed or not self.world.is_listed(instance, self.now):
                unknown.append(one)
            else:
                found.append(instance)
        if unknown:
            raise _unknown_instances(unknown)
        return found


def _unknown_instances(ids: Sequence[str]) -> RefusalError:
    text = f"ID '{ids[0]}' does" if len(ids) == 1 else f"IDs '{', '.join(ids)}' do"
    return RefusalError("InvalidInstanceID.NotFound", f"The instance {text} not exist")
