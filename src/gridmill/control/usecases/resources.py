"""This module has the use cases of resources and deployments."""

from collections.abc import Mapping

from gridmill.control.steps.run_lifecycle import check_resource_settings
from gridmill.control.usecases.base import UseCases
from gridmill.control.usecases.cloud_accounts import account_of
from gridmill.control.usecases.rental_check import check_offered, is_offered
from gridmill.domain.amounts import Amounts, check_memory, show_bytes, show_count, show_cpus
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import replace
from gridmill.domain.naming import check_name, suggestion
from gridmill.domain.resource import Resource, Sizing
from gridmill.domain.service import gpu_lines_on
from gridmill.domain.site import Site
from gridmill.domain.states import DeploymentState
from gridmill.errors import (
    CapacityError,
    ConflictError,
    GridmillError,
    InputError,
    NotFoundError,
    explained,
)
from gridmill.ports.pages import PAGE_ITEMS, Page, names_of_deployment, page_by_names, page_request
from gridmill.ports.site import EarlyTransferSite
from gridmill.ports.store import Noun
from gridmill.scheduler.feasibility import asked_of, problem_of_resource
from gridmill.scheduler.sizing import size_resource
from gridmill.scheduler.snapshot import Snapshot


class ResourceUseCases(UseCases):
    """The use cases of resources and deployments."""

    def configure_resource(self, resource: Resource) -> tuple[Resource, Sizing]:
        """Create or replace a resource. The method returns the chosen size with its reasons."""
        check_name("resource", resource.name)
        check_memory(resource.memory_bytes, f"resource {resource.name}: memory")
        with self._node.lock:
            site = self._site_of(resource)
        unchecked = self._check_offers(resource, site)
        with self._node.changing() as transaction:
            site = self._site_of(resource)
            _check_runnable(self._ledger.snapshot, resource)
            snapshot, node = self._ledger.snapshot, site.largest
            largest = asked_of(snapshot, resource, node)
            sizing = size_resource(resource, snapshot.history, largest, node_cpus=node.cpus)
            if not sizing.amounts.fits_in(site.largest):
                raise CapacityError(_too_large(resource, sizing, site))
            gpu_lines = gpu_lines_on(resource.name, snapshot.services.values())
            transaction.put(resource)
            for other in _without(self._ledger.snapshot.resources, resource):
                transaction.put(other)
        return resource, replace(sizing, why=(*sizing.why, *gpu_lines, *unchecked))

    def _site_of(self, resource: Resource) -> Site:
        """Return the site of a resource. Raises NotFoundError, and InputError for settings that a resource
        cannot have at this site."""
        sites = self._ledger.snapshot.sites
        site = sites.get(resource.site)
        if site is None:
            names = ", ".join(sorted(sites))
            hint = f"{suggestion(resource.site, sites)} Sites are {names}.".lstrip()
            raise NotFoundError(f"there is no site {resource.site!r}", hint=hint)
        check_resource_settings(resource, site)
        return site

    def _check_offers(self, resource: Resource, site: Site) -> tuple[str, ...]:
        """Raise InputError if the provider of a cloud site rents no machine within the terms of a resource.
        The provider is asked without the lock of the node. If it does not answer, the result is a sentence
        about it."""
        if not is_offered(resource, site):
            return ()
        try:
            with account_of(self._control.sites, self._control.open_cloud, site) as cloud:
                check_offered(cloud, resource, site)
        except InputError:
            raise
        except GridmillError as error:
            return (f"not checked: whether {site.name} rents such machines: {explained(error)}",)
        return ()

    def resources(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Resource]:
        """Return all resources, by name."""
        request = page_request(tuple, "resources", limit, cursor)
        with self._node.lock:
            return page_by_names(request, self._ledger.snapshot.resources.values(), lambda one: (one.name,))

    def remove_resource(self, name: str) -> None:
        """Remove a resource that no job waits for."""
        with self._node.changing() as transaction:
            if name not in self._ledger.snapshot.resources:
                raise NotFoundError(f"there is no resource {name!r}")
            job_runs = self._ledger.snapshot.job_runs.values()
            users = [one for one in job_runs if name in (one.resource, *one.job.named_resources)]
            if users:
                raise ConflictError(
                    f"resource {name!r} is used by run {users[0].run_id}",
                    hint=f"`gridmill stop {users[0].run_id}`, or wait for its end.",
                )
            transaction.delete(Resource, name)
            for deployment in self._ledger.snapshot.deployments.values():
                if deployment.resource == name:
                    transaction.put(replace(deployment, state=DeploymentState.RELEASING, message="removed"))

    def deployments(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[Deployment]:
        """Return the deployments that have not ended."""
        request = page_request(tuple, "deployments", limit, cursor)
        with self._node.lock:
            page = page_by_names(request, self._ledger.snapshot.deployments.values(), names_of_deployment)
        sites = [self._control.sites.get(name) for name in {one.site for one in page.items}]
        early: dict[str, str] = {}
        for site in sites:
            if isinstance(site, EarlyTransferSite):
                early.update(site.early_transfers())
        items = tuple(_with_early(one, early) for one in page.items) if early else page.items
        return replace(page, items=items)

    def release(self, deployment_id: str) -> None:
        """Release a deployment when it is idle."""
        with self._node.changing() as transaction:
            deployment = self._ledger.snapshot.deployments.get(deployment_id)
            if deployment is None or deployment.state == DeploymentState.RELEASING:
                return
            if any(self._ledger.snapshot.attempts_on(deployment_id)):
                raise ConflictError(
                    f"deployment {deployment_id} is running jobs", hint="Stop their run, or wait for its end."
                )
            transaction.put(
                replace(deployment, state=DeploymentState.RELEASING, message="released by a user")
            )


def _check_runnable(snapshot: Snapshot, resource: Resource) -> None:
    """Raise InputError if no job can ever run on a resource, such as in a partition that does not exist."""
    named = resource.settings.get("partition", "")
    site = snapshot.sites[resource.site]
    refusal = problem_of_resource(snapshot, resource.name, resource) if named and site.partitions else None
    if refusal is None:
        return
    unknown = next((name for name in named.split(",") if name not in site.partitions), "")
    similar = suggestion(unknown, site.partitions) if unknown else ""
    raise InputError(
        refusal.message,
        hint=f"{similar} {refusal.hint}".lstrip(),
        place=f"resource {resource.name}: settings.partition",
    )


def _with_early(deployment: Deployment, early: Mapping[str, str]) -> Deployment:
    """Return the deployment, with the early transfer to each pod as the message of the pod."""
    pods = tuple(replace(pod, message=pod.message or early.get(pod.id, "")) for pod in deployment.pods)
    return replace(deployment, pods=pods)


def _without(resources: dict[str, Resource], assigned: Resource) -> list[Noun]:
    """Return the other resources that change, each without the jobs that are now assigned to this
    resource."""
    changed: list[Noun] = []
    for resource in resources.values():
        left = tuple(job for job in resource.jobs if job not in assigned.jobs)
        if resource.name != assigned.name and left != resource.jobs:
            changed.append(replace(resource, jobs=left))
    return changed


def _too_large(resource: Resource, sizing: Sizing, site: Site) -> str:
    wanted, most = sizing.amounts, site.largest
    return (
        f"resource {resource.name!r} needs {_shown(wanted)}; "
        f"the largest node of site {site.name!r} has {_shown(most)}"
    )


def _shown(amounts: Amounts) -> str:
    gpus = show_count(amounts.gpus, "GPU") if amounts.gpus else "no GPU"
    return f"{show_cpus(amounts.cpus)}, {show_bytes(amounts.memory_bytes)}, {gpus}"
