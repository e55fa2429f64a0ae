"""This module has the checks that the use cases of services share, and the version that a service is to
serve."""

from collections.abc import Sequence

from gridmill.control.background import BackgroundRunner
from gridmill.control.ledger import Ledger
from gridmill.control.steps.service_features import why_other_requests, with_definition
from gridmill.control.steps.services import is_ending
from gridmill.control.usecases.service_rental import check_limit
from gridmill.domain.amounts import show_count
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.job import JobKind
from gridmill.domain.naming import LAST_PORT
from gridmill.domain.resource import Resource, default_name
from gridmill.domain.service import Service, why_not_served
from gridmill.domain.service_features import FeatureDefinition, features_folder
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.service_size import MOST_REPLICAS, with_pods
from gridmill.domain.service_totals import problems_of
from gridmill.domain.site import MOST_NODES, Site, SiteKind
from gridmill.errors import ConflictError, InputError
from gridmill.scheduler.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenModel:
    """A reference to a version of a model, the version, and the alias that a service follows."""

    reference: str
    version: Artifact
    follows: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinedFeatures:
    """The definition of the contextual features of a version. It is None if requests send all features."""

    version: str
    definition: FeatureDefinition | None


def check_served(version: Artifact, current: Artifact | None) -> None:
    """Raise InputError for a version that a service cannot serve. `current` is the version that it serves."""
    why = why_not_served(version, current)
    if why:
        hint = f"Start another service: gridmill start service NAME --model {version.id}" if current else ""
        raise InputError(f"{version.id} cannot be served: {why}", hint=hint, place="model")


def not_in_effect(service: Service) -> ConflictError:
    """Return the error for a change while an earlier change is not in effect."""
    problems = "; ".join(problems_of(service))
    why = f": {problems}" if problems else ""
    return ConflictError(
        f"the update of service {service.name!r} to {service.version} (generation {service.generation}) is "
        f"not in effect yet{why}",
        hint=f"Wait for it (gridmill show service {service.name}), or return to the state before: gridmill "
        f"rollback service {service.name}",
    )


def check_not_ending(ledger: Ledger, service: Service) -> None:
    """Raise ConflictError for a change of a service whose run ends."""
    if is_ending(ledger, service):
        raise ConflictError(
            f"service {service.name!r} is stopping",
            hint=f"Wait until it is stopped (gridmill show service {service.name}), and then start it: "
            f"gridmill start service {service.name}",
        )


def check_files_removed(discarded: Sequence[str], background: BackgroundRunner, name: str) -> None:
    """Raise ConflictError while the files of a removed service with the same name are deleted: they are
    `discarded`, or are deleted in the background."""
    folder = features_folder(name)
    if folder in discarded or background.is_running(f"remove {folder}"):
        raise ConflictError(
            f"the files of the removed service {name!r} are still being deleted",
            hint="Start it again in some seconds.",
        )


def check_same_basis(basis: Service | None, service: Service) -> None:
    """Raise ConflictError if a service was changed while the features of an update were defined. `basis` is
    the service for which they were defined; None if the update defines none."""
    if basis is None or (basis.version, basis.settings.features) == (
        service.version,
        service.settings.features,
    ):
        return
    raise ConflictError(
        f"service {service.name!r} was changed by another update meanwhile, and serves {service.version}",
        hint=f"`gridmill show service {service.name}` shows it. Repeat the update if it is still wanted.",
    )


def check_one_version(model: str, canary: str, shadow: str) -> None:
    """Raise InputError if an update names several versions."""
    options = {"--model": model, "--canary": canary, "--shadow": shadow}
    named = [option for option, version in options.items() if version]
    if len(named) > 1:
        raise InputError(
            f"{' and '.join(named)} are two updates"
            if len(named) == 2
            else "three versions are three updates",
            hint=f"Leave out {' or '.join(named)}.",
            place="canary" if canary else "shadow",
        )


def check_replicas(replicas: int) -> None:
    """Raise InputError for a number of replicas that a service cannot have."""
    if not 1 <= replicas <= MOST_REPLICAS:
        raise InputError(f"replicas is {replicas}; it must be from 1 to {MOST_REPLICAS}", place="replicas")


def check_port(port: int) -> None:
    """Raise InputError for a number that is not a port."""
    if not 0 <= port <= LAST_PORT:
        raise InputError(f"port is {port}; it must be from 1 to {LAST_PORT}, or 0 for any", place="port")


def check_port_is_free(snapshot: Snapshot, wanted: Service) -> None:
    """Raise ConflictError if the port of a service belongs to another service."""
    for other in snapshot.services.values():
        if wanted.port and other.port == wanted.port and other.name != wanted.name:
            raise ConflictError(
                f"port {wanted.port} belongs to service {other.name!r}",
                hint="Choose another port, or leave out --port.",
            )


def check_follows(service: Service, change: ServiceSettings) -> None:
    """Raise InputError if a change sets how a service follows its alias, but the service follows none."""
    if change.follow_percent is not None and not (service.follows or service.canary_follows):
        raise InputError(
            f"service {service.name!r} follows no alias, so that the weight would have no effect",
            hint="Name an alias together with it: --model PIPELINE/JOB@ALIAS "
            f"--follow-weight {change.follow_percent:g}",
            place="follow_weight",
        )


def resource_to_start(named: str, before: Service | None) -> str:
    """Return the resource of a service that starts: the named resource, or the one that it had before. The
    name of the default resource means that the service has no resource of its own."""
    if not named:
        return before.resource if before is not None else ""
    return "" if named == default_name(JobKind.SERVICE) else named


def version_before(before: Service | None, version: Artifact) -> str:
    """Return the version to which a started service can return."""
    if before is None:
        return ""
    return before.previous if before.version == version.id else before.version


def with_size_before(service: Service, before: Service) -> Service:
    """Return a service that starts without a size of its own with the size that it had before. If the size
    follows from the rate alone, another version or number of pods gets the replicas that the rate needs. If
    the number of pods was chosen by the rate, it is chosen again."""
    is_other = (service.version, service.settings.pods) != (before.version, before.settings.pods)
    is_chosen = not before.settings.pods and before.pods > 1 and _has_computed_size(before)
    is_computed = bool(before.rate) and before.scaling is None and (is_other or is_chosen)
    return replace(
        service,
        replicas=0 if is_computed else before.replicas,
        rate=before.rate,
        scaling=before.scaling,
        size=before.size,
        size_request=before.size_request,
    )


def least_before(before: Service) -> int | None:
    """Return the smallest number of replicas of the range that a service had before; None if it had none. A
    service whose rented machine has not measured its version yet has only the request for the range."""
    if before.scaling is not None:
        return before.scaling.least
    return before.size_request.least_replicas if before.size_request is not None else None


def _has_computed_size(service: Service) -> bool:
    """Return whether the number of replicas is that of the size by measurement."""
    return service.scaling is None and service.size is not None and service.size.replicas == service.replicas


def has_present_size(running: Service, wanted: Service, least_replicas: int | None) -> bool:
    """Return whether a service is requested for the rate alone for which it runs."""
    is_by_rate = not wanted.replicas and least_replicas is None and _has_computed_size(running)
    return is_by_rate and wanted.rate == running.rate


def check_same_machine(service: Service) -> None:
    """Raise ConflictError for another number of replicas while another rented machine replaces that of a
    service that is sized by measurement: the replicas on the next machine get the size for this machine."""
    if service.size_request is not None and service.succession.successor is not None:
        raise ConflictError(
            f"the size of service {service.name!r} cannot change: another machine replaces its machine now",
            hint=f"Wait until the change is complete: gridmill show service {service.name}",
        )


def with_pods_of(service: Service) -> Service:
    """Return a service whose size has the number of pods of its settings."""
    size = service.size
    if size is None or (service.rate and not service.settings.pods):
        return service
    return replace(service, size=with_pods(size, service.settings.pods or 1))


def has_other_pods_alone(before: Service, after: Service) -> bool:
    """Return whether a change of the settings only changes the number of pods."""
    settings = replace(after.settings, pods=before.settings.pods)
    return replace(after, settings=settings, size=before.size) == before


def change_text(service: Service) -> str:
    """Return what a service serves after a change, for its events."""
    canary = f", {service.canary_percent:g} % of it by {service.canary}," if service.canary else ""
    each = f" in each of {service.pods} pods" if service.pods > 1 else ""
    return (
        f"serves {service.version}{canary} with {service.replicas} replicas{each} as generation "
        f"{service.generation}"
    )


def check_same(running: Service, wanted: Service, *, names_model: bool = True) -> None:
    """Raise ConflictError if a running service differs from the service that a user wants to start. Without
    `names_model`, the user has not named its version."""
    if running.size_request is not None and wanted.size_request is not None:
        # the number of replicas on a rented machine follows from a measurement
        same = running.size_request.terms == wanted.size_request.terms
        wanted = replace(wanted, replicas=running.replicas, scaling=running.scaling) if same else wanted
    differs = ["model"] if names_model and not _has_same_version(running, wanted) else []
    names = ("replicas", "rate", "resource", "project", "settings")
    differs += [name for name in names if getattr(running, name) != getattr(wanted, name)]
    if (running.scaling is None) != (wanted.scaling is None) and "replicas" not in differs:
        differs.append("range of replicas")
    if wanted.port not in (0, running.port):
        differs.append("port")
    if differs:
        raise ConflictError(
            f"service {running.name!r} already runs with other options: {', '.join(differs)}",
            hint=f"Change it: gridmill update service {running.name} --model ... --replicas ... --rate ...; "
            f"or stop it first: gridmill stop service {running.name}",
        )


def _has_same_version(running: Service, wanted: Service) -> bool:
    """Return whether both services follow the same alias, or serve the same version without an alias."""
    if running.follows or wanted.follows:
        return running.follows == wanted.follows
    return running.version == wanted.version


def check_serves(service: Service, resource: Resource, site: Site | None) -> None:
    """Raise InputError if a service cannot run at the site of its resource, which is not `local`."""
    why = _NO_SERVICES.get(site.kind if site is not None else SiteKind.LOCAL)
    if why:
        raise InputError(
            f"service {service.name!r} cannot run on resource {resource.name!r} at site {resource.site!r}: "
            f"{why}",
            hint="Leave out the resource, or name a resource of type service at `local`, at a farm, on Ray "
            "or at a cloud site.",
            place="resource",
        )
    if site is not None and site.kind is SiteKind.CLOUD:
        check_limit(service, resource, site)
    check_settings_elsewhere(service, site)


def check_settings_elsewhere(service: Service, site: Site | None) -> None:
    """Raise InputError for settings that a service cannot have at a site other than `local`."""
    is_guarded = service.settings.require_keys or service.settings.accept_open
    if site is not None and site.kind is SiteKind.RAY and not is_guarded:
        raise InputError(
            f"machines in the network of Ray site {site.name!r} could reach the replicas of service "
            f"{service.name!r}, which has no API keys (--require-keys)",
            hint="Add --require-keys, or accept this with --accept-open.",
            place="require_keys",
        )


def check_pods(service: Service, site: Site | None) -> None:
    """Raise InputError if a service cannot run in its number of pods at its site. `site` is None for the site
    `local`."""
    if service.pods == 1:
        return
    if site is None or site.kind is not SiteKind.RAY:
        where = site.name if site is not None else service.site
        raise InputError(
            f"service {service.name!r} cannot run in {service.pods} pods at site {where!r}: only services on "
            "a Ray cluster run in several pods",
            hint="Leave out --pods, or name a resource of type service at a site of kind ray (--resource).",
            place="pods",
        )
    most = max(len(site.nodes), site.most_nodes or 0)
    if site.nodes and service.pods > most:
        raise InputError(
            f"service {service.name!r} cannot run in {service.pods} pods: each pod needs a node of its own, "
            f"and site {site.name!r} has {show_count(most, 'node')}",
            hint=f"--pods {most}; if the cluster adds nodes: gridmill configure site {site.name} --set "
            f"{MOST_NODES}=N",
            place="pods",
        )


_NO_SERVICES = {
    SiteKind.SLURM: "a job of Slurm ends at its walltime, and its node may not be reachable from here",
    SiteKind.BATCH: "a batch service runs jobs that end, and has no connection to them",
}
"""The kinds of sites at which services do not run, each with the reason."""


def with_features(
    before: Service, after: Service, features: DefinedFeatures, is_new_version: bool
) -> Service:
    """Return the service with the definition of the features of its version. Raises InputError if clients
    would have to send other columns to another version."""
    why = why_other_requests(before.features.get(before.version), features.definition)
    if is_new_version and why:
        raise InputError(f"{features.version} cannot be served: {why}", place="model")
    return with_definition(after, features.version, features.definition)
