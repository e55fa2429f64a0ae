"""The verbs of resources and deployments."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from gridmill.errors import ConflictError
from gridmill.model.deployment import Deployment
from gridmill.model.job import JobKind
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
        sizes = {"rows": rows, "columns": columns, "cpus": cpus, "memory": memory, "gpus": gpus}
        others = {"workers": workers, "keep": keep, "jobs": jobs, "settings": settings, "staging": staging}
        return self.grid.configure_resource(
            make_resource({"name": name, "type": type, "site": site, **sizes, **others})
        )

    def alter_resource(self, name: str, **changes: Any) -> tuple[Resource, Sizing]:  # noqa: ANN401
        """Change fields of a resource, as `configure_resource` names them, leaving the others."""
        current: Resource = find_noun(self.grid, Noun.RESOURCE, name)
        if current.default:
            raise ConflictError(f"{name!r} is made by Gridmill itself", hint="Configure one of your own.")
        return self.grid.configure_resource(make_resource({**_construct().written(current), **changes}))

    def remove_resource(self, name: str) -> None:
        """Remove a resource."""
        self.grid.remove_resource(name)

    def list_resources(self) -> tuple[Resource, ...]:
        """Resources, by name."""
        return self.grid.resources()

    def list_deployments(self) -> tuple[Deployment, ...]:
        """Deployments that are not gone."""
        return self.grid.deployments()


def make_resource(fields: Mapping[str, object]) -> Resource:
    """The resource with these fields, as a file names them. Raises PipelineError."""
    made: Resource = _construct().construct(Resource, (), fields)
    return made


def _construct() -> Any:  # noqa: ANN401  a module
    """What makes nouns by the names of files: loaded when it is used."""
    return import_module("gridmill.declarations.construct")
