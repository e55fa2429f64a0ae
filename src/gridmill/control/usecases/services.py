"""This module has the use cases of services."""

from functools import partial

from gridmill.control.ledger import Transaction
from gridmill.control.steps.certificates import check_certificate
from gridmill.control.steps.references import fetch_artifact, find_alias, find_version
from gridmill.control.steps.run_lifecycle import begin_run, resource_of, stop_run
from gridmill.control.steps.service_chains import chain_stages, check_stages_trusted
from gridmill.control.steps.service_features import (
    define_features,
    feature_question,
    with_definition,
)
from gridmill.control.steps.service_gpus import check_gpu_memory, with_gpu_claim
from gridmill.control.steps.service_logs import log_losses
from gridmill.control.steps.service_measuring import size_message
from gridmill.control.steps.service_totals import read_attempt, read_totals
from gridmill.control.steps.services import (
    add_event,
    changed_version,
    earlier_end,
    further_jobs,
    live_attempt,
    live_attempts,
    outdated_pod,
    send_order,
)
from gridmill.control.usecases.service_checks import (
    ChosenModel,
    DefinedFeatures,
    change_text,
    check_files_removed,
    check_follows,
    check_not_ending,
    check_one_version,
    check_pods,
    check_port,
    check_port_is_free,
    check_replicas,
    check_same,
    check_same_basis,
    check_same_machine,
    check_served,
    check_serves,
    check_settings_elsewhere,
    has_other_pods_alone,
    has_present_size,
    least_before,
    not_in_effect,
    resource_to_start,
    version_before,
    with_features,
    with_pods_of,
    with_size_before,
)
from gridmill.control.usecases.service_rental import rental_text_of
from gridmill.control.usecases.service_sizes import (
    ServiceSizeUseCases,
    check_range,
    check_rate,
    check_replicas_fit,
    make_room,
)
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import replace
from gridmill.domain.log_counts import NO_LOG
from gridmill.domain.naming import check_name
from gridmill.domain.project import DEFAULT
from gridmill.domain.run import Attempt, JobRun, Run
from gridmill.domain.service import (
    ROUTE,
    Service,
    ServiceRoute,
    ServiceState,
    ServiceView,
    alias_followed,
    check_trusted,
    pipeline_of,
    ready_replicas,
    state_of,
)
from gridmill.domain.service_canary import DEFAULT_PERCENT, check_percent, with_canary, with_percent
from gridmill.domain.service_features import (
    FeatureDefinition,
    FeatureSettings,
    check_sent_features,
    features_folder,
)
from gridmill.domain.service_keys import without_hashes
from gridmill.domain.service_rollback import with_terms_before
from gridmill.domain.service_settings import NO_SETTINGS, ServiceSettings, check_settings, merged
from gridmill.domain.service_shadow import DEFAULT_PERCENT as DEFAULT_SHADOW_PERCENT
from gridmill.domain.service_shadow import with_shadow, with_shadow_percent
from gridmill.domain.service_totals import as_shown, problems_of
from gridmill.domain.site import LOCAL
from gridmill.domain.states import FINISHED_RUNS, JobState
from gridmill.errors import ConflictError, InputError, NotFoundError, StaleVersionError, explained
from gridmill.ports.pages import PAGE_ITEMS, Page, page_request
from gridmill.scheduler.service_pods import further_replicas, pods_message, with_wait_for_pods


class ServiceUseCases(ServiceSizeUseCases):
    """The use cases of services (ports.services.Services)."""

    def services(self, *, limit: int = PAGE_ITEMS, cursor: str | None = None) -> Page[ServiceView]:
        """Return all services, by name."""
        page = self._page_by_key(Service, page_request(tuple, "services", limit, cursor))
        with self._node.lock:
            views = tuple(self._service_view(one) for one in page.items)
        return Page(items=views, next_cursor=page.next_cursor)

    def service(self, name: str) -> ServiceView:
        """Return one service."""
        with self._node.lock:
            return self._service_view(self._known_service(name))

    def start_service(
        self,
        name: str,
        *,
        model: str = "",
        replicas: int = 0,
        least_replicas: int | None = None,
        rate: float = 0.0,
        resource: str = "",
        port: int = 0,
        project: str = "",
        settings: ServiceSettings = NO_SETTINGS,
    ) -> ServiceView:
        """Start a service, and return immediately."""
        check_name("service", name)
        check_range(replicas, least_replicas)
        check_rate(rate)
        check_port(port)
        self._check_settings(name, settings)
        chosen = self._model_to_start(name, model)
        check_trusted(chosen.version, self._settings_after(name, settings))
        definition = self._defined(name, chosen.version, settings)
        with self._node.changing() as transaction:
            before = transaction.get(Service, name)
            self._start(
                transaction,
                name,
                chosen,
                definition,
                replicas=replicas,
                least_replicas=least_replicas,
                rate=rate,
                resource=resource_to_start(resource, before),
                port=port,
                project=project or (before.project if before is not None else DEFAULT),
                settings=settings,
                is_again=not (replicas or rate),
                names_model=bool(model),
            )
        return self.service(name)

    def _start(
        self,
        transaction: Transaction,
        name: str,
        chosen: ChosenModel,
        definition: FeatureDefinition | None,
        *,
        replicas: int,
        least_replicas: int | None,
        rate: float,
        resource: str,
        port: int,
        project: str,
        settings: ServiceSettings,
        is_again: bool = False,
        names_model: bool = True,
    ) -> Service:
        """Start a service, and return its record. With `is_again`, the service keeps its size. Without
        `names_model`, a running service keeps its version. Raises ConflictError if the service runs with
        other settings."""
        before = self._ledger.snapshot.services.get(name)
        wanted = Service(
            name=name,
            model=chosen.reference,
            version=chosen.version.id,
            follows=chosen.follows,
            previous=version_before(before, chosen.version),
            generation=before.generation + 1 if before is not None else 1,
            replicas=replicas,
            rate=rate,
            resource=resource,
            port=port or (before.port if before is not None else 0),
            settings=merged(before.settings if before is not None else NO_SETTINGS, settings),
            keys=before.keys if before is not None else (),
            project=project,
            created=before.created if before is not None else transaction.now,
            started=transaction.now,
            changed=transaction.now,
            features=before.features if before is not None else {},
            declared_by=before.declared_by if before is not None else "",
            log=before.log if before is not None else NO_LOG,
        )
        is_running = before is not None and before.is_meant_to_run and before.retry_at is None
        if before is not None and is_again:
            wanted = with_size_before(wanted, before)
            least_replicas = least_before(before)
        if before is not None and is_running:
            check_not_ending(self._ledger, before)
            if is_again or has_present_size(before, wanted, least_replicas):
                wanted = replace(wanted, replicas=before.replicas, scaling=before.scaling)
            else:
                wanted = self._with_size(wanted, least_replicas)
            check_same(before, wanted, names_model=names_model)
            return before
        check_follows(wanted, settings)
        wanted = with_definition(wanted, wanted.version, definition)
        check_stages_trusted(self._control.catalog, wanted)
        wanted = self._with_size(wanted, least_replicas)
        check_port_is_free(self._ledger.snapshot, wanted)
        return self._begin(transaction, wanted)

    def _begin(self, transaction: Transaction, service: Service) -> Service:
        """Start the run of the service, and return its record. Raises InputError if no services run at the
        site of its resource."""
        pipeline = pipeline_of(service)
        resources = self._ledger.snapshot.resources
        used = resource_of(pipeline.jobs[0], pipeline.name, resources, "resource")
        check_pods(replace(service, resource=used.name), self._ledger.snapshot.sites.get(used.site))
        if used.site != LOCAL:
            site = self._ledger.snapshot.sites.get(used.site)
            check_serves(service, used, site)
            service = replace(service, route=ServiceRoute(site=used.site))
        service = with_gpu_claim(self._control.catalog, service, used)
        pipeline = pipeline_of(service)
        run = begin_run(self._control.run_creation, transaction, pipeline, force=False)
        begun = replace(service, run_id=run.id)
        transaction.put(begun)
        add_event(transaction, begun, ServiceState.STARTING, f"starts with {service.version}")
        return begun

    def _check_settings(self, name: str, change: ServiceSettings) -> None:
        """Raise InputError if the service cannot have its settings after the change."""
        after = self._settings_after(name, change)
        check_settings(after)
        check_certificate(after)

    def _settings_after(self, name: str, change: ServiceSettings) -> ServiceSettings:
        before = self._ledger.read(Service, name)
        return merged(before.settings if before is not None else NO_SETTINGS, change)

    def update_service(
        self,
        name: str,
        *,
        model: str = "",
        replicas: int | None = None,
        least_replicas: int | None = None,
        rate: float = 0.0,
        port: int = 0,
        settings: ServiceSettings = NO_SETTINGS,
        canary: str = "",
        weight_percent: float | None = None,
        shadow: str = "",
        shadow_percent: float | None = None,
        expected: int | None = None,
    ) -> ServiceView:
        """Change the version, the replicas or the settings of a running service."""
        if replicas is not None:
            check_replicas(replicas)
        check_range(replicas or 0, least_replicas)
        check_rate(rate)
        check_port(port)
        self._check_settings(name, settings)
        check_percent(weight_percent)
        check_percent(shadow_percent, "shadow_percent")
        check_one_version(model, canary, shadow)
        chosen = self._model(model) if model else None
        canary_model = self._model(canary) if canary else None
        shadow_model = self._model(shadow) if shadow else None
        basis = self._ledger.read(Service, name)
        features = self._defined_for_update(name, chosen or canary_model or shadow_model, settings)
        with self._node.changing() as transaction:
            service = self._running_service(name)
            check_same_basis(basis if features is not None else None, service)
            if expected is not None and expected != service.generation:
                raise StaleVersionError(
                    f"service {name!r} has generation {service.generation}, not {expected}"
                )
            self._update(
                transaction,
                service,
                chosen,
                features,
                replicas=replicas,
                least_replicas=least_replicas,
                rate=rate,
                port=port,
                settings=settings,
                canary_model=canary_model,
                canary_percent=weight_percent,
                shadow_model=shadow_model,
                shadow_percent=shadow_percent,
            )
        return self.service(name)

    def _update(
        self,
        transaction: Transaction,
        service: Service,
        chosen: ChosenModel | None,
        features: DefinedFeatures | None,
        *,
        replicas: int | None,
        least_replicas: int | None,
        rate: float,
        port: int,
        settings: ServiceSettings,
        canary_model: ChosenModel | None = None,
        canary_percent: float | None = None,
        shadow_model: ChosenModel | None = None,
        shadow_percent: float | None = None,
        may_replace: bool = False,
    ) -> Service:
        """Change a running service, and return its record. With `may_replace`, the change may replace a
        change that is not in effect. Raises InputError, CapacityError, ConflictError."""
        after = self._updated(transaction, service, chosen, replicas, least_replicas, rate, settings.pods)
        definition = features.definition if features is not None else None
        after = self._with_canary(after, canary_model, definition, canary_percent, transaction.now)
        after = self._with_shadow(after, shadow_model, definition, shadow_percent, transaction.now)
        if features is not None:
            after = with_features(service, after, features, bool(chosen or canary_model or shadow_model))
        after = self._reconfigured(after, port or service.port, settings, transaction.now)
        for version in filter(None, (after.version, after.canary, after.shadow_version)):
            check_trusted(fetch_artifact(self._control.catalog, version), after.settings)
        check_stages_trusted(self._control.catalog, after)
        make_room(self._ledger.snapshot, transaction, service, after)
        if after.generation != service.generation and not service.is_in_effect and not may_replace:
            raise not_in_effect(service)
        if after.size != service.size:
            self._give(transaction, after)
        return self._change(transaction, service, after)

    def _defined(self, name: str, version: Artifact, change: ServiceSettings) -> FeatureDefinition | None:
        """Store the definition of the contextual features of a version, and return it. The result is None if
        requests send all features. Raises InputError that names each feature that cannot be computed by
        key."""
        with self._node.lock:
            check_files_removed(self._control.discarded, self._control.background, name)
            before = self._ledger.read(Service, name)
            settings = merged(before.settings if before is not None else NO_SETTINGS, change)
            wanted = settings.features or FeatureSettings()
            definitions = before.definitions if before is not None else ()
            control = self._control
            question = feature_question(control.catalog, control.storage, name, version, wanted, definitions)
        definition = define_features(self._control.storage, question)
        if definition is None:
            check_sent_features(version, wanted)
        return definition

    def _defined_for_update(
        self, name: str, chosen: ChosenModel | None, change: ServiceSettings
    ) -> DefinedFeatures | None:
        """Define the features again if an update changes the version or the settings of features."""
        if chosen is None and change.features is None and "features" not in change.unset:
            return None
        with self._node.lock:
            service = self._running_service(name)
            version = fetch_artifact(self._control.catalog, service.version)
        if chosen is not None:
            check_served(chosen.version, version)
            version = chosen.version
        return DefinedFeatures(version=version.id, definition=self._defined(name, version, change))

    def _updated(
        self,
        transaction: Transaction,
        service: Service,
        chosen: ChosenModel | None,
        replicas: int | None,
        least_replicas: int | None,
        rate: float,
        pods: int | None,
    ) -> Service:
        after = service
        if chosen is not None:
            check_served(chosen.version, fetch_artifact(self._control.catalog, service.version))
            after = changed_version(
                service, chosen.version, chosen.follows, chosen.reference, transaction.now
            )
        present = (service.replicas, service.scaling.least if service.scaling is not None else None)
        rate = rate or (service.rate if replicas is None and pods not in (None, service.pods) else 0.0)
        if not rate and (replicas is None or (replicas, least_replicas) == present):
            return after
        if rate or least_replicas is not None:
            after = self._sized_for(transaction, after, rate, replicas, least_replicas, pods)
            if after == service:
                return service
        else:
            check_same_machine(service)
            attempt = live_attempt(transaction, service)
            check_replicas_fit(self._ledger.snapshot, attempt, service, replicas or 0)
            after = replace(after, replicas=replicas or 0, scaling=None, size_request=None)
        return replace(after, generation=service.generation + 1, changed=transaction.now)

    def _with_canary(
        self,
        service: Service,
        canary: ChosenModel | None,
        definition: FeatureDefinition | None,
        percent: float | None,
        now: float,
    ) -> Service:
        """Return the service with another canary, or with another share for it. The features of the canary
        are computed by `definition`."""
        if canary is None:
            return service if percent is None else with_percent(service, percent, now)
        check_served(canary.version, fetch_artifact(self._control.catalog, service.version))
        return with_canary(
            service,
            canary.version,
            stages=chain_stages(self._control.catalog, definition),
            model=canary.reference,
            follows=canary.follows,
            percent=DEFAULT_PERCENT if percent is None else percent,
            now=now,
        )

    def _with_shadow(
        self,
        service: Service,
        shadow: ChosenModel | None,
        definition: FeatureDefinition | None,
        percent: float | None,
        now: float,
    ) -> Service:
        """Return the service with another shadow, or with another part of the requests that is copied. The
        features of the shadow are computed by `definition`."""
        if shadow is None:
            return service if percent is None else with_shadow_percent(service, percent, now)
        stages = chain_stages(self._control.catalog, definition)
        given = DEFAULT_SHADOW_PERCENT if percent is None else percent
        return with_shadow(
            service, shadow.version, stages=stages, model=shadow.reference, percent=given, now=now
        )

    def _reconfigured(self, service: Service, port: int, change: ServiceSettings, now: float) -> Service:
        """Return the service with other settings or at another port."""
        settings = merged(service.settings, change)
        check_settings(settings)
        after = with_pods_of(replace(service, settings=settings, port=port))
        check_follows(after, change)
        if after == service:
            return service
        if settings.pods != service.settings.pods:
            check_pods(after, self._ledger.snapshot.sites.get(after.site))
        if has_other_pods_alone(service, after):
            return replace(after, changed=now)  # the replicas of the present pods stay as they are
        if after.route is not None:
            check_settings_elsewhere(after, self._ledger.snapshot.sites.get(after.route.site))
        if after.host != service.host and after.port == service.port:
            raise InputError(
                f"the address of service {service.name!r} can change from {service.host} to {after.host} "
                "only with another port, because the old replicas listen at its port until they end",
                hint=f"Add --port, or stop the service and start it: gridmill start service {service.name} "
                f"--host {after.host}",
                place="host",
            )
        check_port_is_free(self._ledger.snapshot, after)
        return replace(after, generation=service.generation + 1, changed=now)

    def _change(self, transaction: Transaction, before: Service, after: Service) -> Service:
        """Store a service after a change, send its order, and return its record."""
        outdated = outdated_pod(self._control.channels, before, live_attempts(transaction, before))
        if outdated is not None and after.generation != before.generation:
            raise outdated
        check_gpu_memory(self._control.catalog, before, after)
        after = with_wait_for_pods(before, with_terms_before(before, after))
        transaction.put(after)
        if after.generation != before.generation:
            add_event(transaction, after, ServiceState.UPDATING, change_text(after))
            control = self._control
            send_order(control.catalog, control.storage, control.channels, transaction, after)
        return after

    def stop_service(self, name: str) -> ServiceView:
        """Stop a service, and return immediately."""
        with self._node.changing() as transaction:
            service = self._known_service(name)
            run = transaction.get(Run, service.run_id)
            if run is not None and run.state not in FINISHED_RUNS:
                control = self._control
                stop_run(self._ledger, control.channels, control.candidates, transaction, run, None)
            elif service.retry_at is not None:
                transaction.put(replace(service, ended=transaction.now, retry_at=None, problem=""))
        return self.service(name)

    def remove_service(self, name: str) -> None:
        """Delete the record of a stopped service."""
        with self._node.changing() as transaction:
            service = self._known_service(name)
            if service.is_meant_to_run:
                raise ConflictError(
                    f"service {name!r} is running", hint=f"Stop it first: gridmill stop service {name}"
                )
            transaction.delete(Service, name)
            transaction.then(partial(self._control.discarded.append, features_folder(name)))

    def _known_service(self, name: str) -> Service:
        service = self._ledger.read(Service, name)
        if service is None:
            raise NotFoundError(f"there is no service {name!r}", hint="`gridmill list services` shows them.")
        return service

    def _running_service(self, name: str) -> Service:
        service = self._known_service(name)
        if not service.is_meant_to_run:
            raise ConflictError(
                f"service {name!r} is stopped", hint=f"Start it: gridmill start service {name}"
            )
        check_not_ending(self._ledger, service)
        return service

    def _model_to_start(self, name: str, reference: str) -> ChosenModel:
        """Return the version with which a service starts. Without a reference, this is the version that a
        stopped service served last, or the version that its alias names now."""
        before = self._ledger.read(Service, name)
        if not reference and before is None:
            raise InputError(
                f"service {name!r} does not exist, and no model is named",
                hint=f"gridmill start service {name} --model PIPELINE/JOB@NUMBER",
                place="model",
            )
        if reference or before is None:
            return self._model(reference)
        return self._model(before.follows or before.version)

    def _model(self, reference: str) -> ChosenModel:
        """Return the version that the reference names now. Its files are compared with their hashes, without
        the lock of the node. Raises NotFoundError, InputError."""
        with self._node.lock:
            version = find_version(self._control.catalog, reference)
        check_served(version, None)
        for result in self._control.storage.verify([version]):
            if result.is_wrong:
                raise InputError(
                    f"the files of {version.id} have changed, so it cannot be served",
                    hint=f"gridmill verify {version.id}",
                    place="model",
                )
        return ChosenModel(reference=reference, version=version, follows=alias_followed(reference, version))

    def _service_view(self, service: Service) -> ServiceView:
        """Return the view of a service. The caller holds the node's lock."""
        # from the store, because a control node that only reads holds no records in memory
        run = self._ledger.read(Run, service.run_id)
        job_run = self._ledger.read(JobRun, f"{service.run_id}/{service.serving_job}")
        router = self._ledger.read(JobRun, f"{service.run_id}/{ROUTE}") if service.route else None
        state = state_of(service, run, job_run, router)
        attempt = read_attempt(self._ledger, service, service.serving_job)
        serves = attempt is not None and service.reported_by == attempt.id
        report = service.report if serves else None
        is_waiting = service.is_meant_to_run and service.retry_at is None
        held_up = (
            one
            for one in (job_run, router, *further_jobs(self._ledger, service))
            if one is not None and one.state is not JobState.RUNNING
        )
        why = "; ".join(one.message for one in held_up if one.message) if is_waiting else ""
        routed = service.route.report if service.route is not None else None
        reported = [*(problems_of(service) if serves else ()), routed.problem if routed is not None else ""]
        routing = self._ledger.read(Attempt, router.attempt_id) if router and router.attempt_id else None
        others = (read_attempt(self._ledger, service, one.job) for one in service.further_pods)
        outdated = outdated_pod(self._control.channels, service, (attempt, routing, *others))
        old_pod = explained(outdated) if outdated is not None and service.is_meant_to_run else ""
        untransferred = service.route.problem if service.route is not None else ""
        moves = (service.succession.message or pods_message(service)) if is_waiting else ""
        alias = find_alias(self._ledger, service.follows) if service.follows else None
        size = size_message(service, (job_run,))
        messages = (service.problem, why, size, untransferred, *reported, service.refusal, old_pod, moves)
        return ServiceView(
            service=as_shown(replace(service, keys=without_hashes(service.keys))),
            state=state,
            url=service.url,
            ready=ready_replicas(report) + further_replicas(service),
            since=attempt.started if attempt is not None else None,
            message="; ".join(filter(None, messages)),
            rental=rental_text_of(self._ledger, service, attempt),
            promotion=alias.promotion if alias is not None else None,
            totals=read_totals(self._ledger, self._control.channels, service),
            last_end=earlier_end(self._ledger, job_run) if attempt is not None else "",
            log=log_losses(self._control.storage, service),
        )
