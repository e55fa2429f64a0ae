"""The verbs of resources and deployments."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gridmill.errors import ConflictError, InputError
from gridmill.model.amounts import parse_bytes, parse_count, parse_seconds
from gridmill.model.deployment import Deployment
from gridmill.model.job import JobKind, JobSize
from gridmill.model.resource import Resource, Sizing
from gridmill.model.staging import Staging
from gridmill.sdk.connected import Connected
from gridmill.sdk.lookup import Noun, find_noun


class ResourceVerbs(Connected):
    """The verbs of resources and deployments."""

    def configure_resource(
        self,
        name: str,
        type: JobKind | str,
        *,
        rows: int | str | None = None,
        columns: int | None = None,
        cpus: float | None = None,
        memory: int | str | None = None,
        gpus: int = 0,
        workers: int | None = None,
        keep: float | str | None = None,
        site: str = "local",
        jobs: tuple[str, ...] = (),
        settings: Mapping[str, str] | None = None,
        staging: Staging | str | None = None,
    ) -> tuple[Resource, Sizing]:
        """Create or replace a resource; it and the size chosen, with why.

        Sizes: `rows="1M"`, `memory="4GiB"`, `keep="10m"` or plain numbers (bytes, seconds).
        `settings` are of the site's kind, before the site's own: `{"partition": "gpu"}`. `staging`: at a
        cluster, how data gets there. Raises InputError, CapacityError.
        """
        size = JobSize(rows=None if rows is None else parse_count(rows), columns=columns)
        resource = Resource(
            name=name,
            type=read_kind(type),
            site=site,
            size=None if size == JobSize() else size,
            cpus=cpus,
            memory_bytes=None if memory is None else parse_bytes(memory),
            gpus=gpus,
            workers=workers,
            keep_seconds=None if keep is None else parse_seconds(keep),
            jobs=jobs,
            settings=settings or {},
            staging=None if staging is None else read_staging(staging),
        )
        return self.grid.configure_resource(resource)

    def alter_resource(self, name: str, **changes: Any) -> tuple[Resource, Sizing]:  # noqa: ANN401
        """Change fields of a resource (as Resource names them), leaving the others."""
        current: Resource = find_noun(self.grid, Noun.RESOURCE, name)
        if current.default:
            raise ConflictError(f"{name!r} is made by Gridmill itself", hint="Configure one of your own.")
        return self.grid.configure_resource(replace(current, **changes))

    def remove_resource(self, name: str) -> None:
        """Remove a resource."""
        self.grid.remove_resource(name)

    def list_resources(self) -> tuple[Resource, ...]:
        """Resources, by name."""
        return self.grid.resources()

    def list_deployments(self) -> tuple[Deployment, ...]:
        """Deployments that are not gone."""
        return self.grid.deployments()


def read_kind(kind: JobKind | str) -> JobKind:
    """A job kind by name. Raises InputError, naming what there is."""
    if kind not in list(JobKind):
        raise InputError(f"there is no type {str(kind)!r}", hint=f"There are: {', '.join(JobKind)}.")
    return JobKind(kind)


def read_staging(staging: Staging | str) -> Staging:
    """A way of staging by name. Raises InputError, naming what there is."""
    if staging not in list(Staging):
        raise InputError(f"there is no staging {str(staging)!r}", hint=f"There are: {', '.join(Staging)}.")
    return Staging(staging)
