"""Contextual features of services on a simulated grid: their definitions, and the versions of tables that
their views follow."""

from pathlib import Path

import pytest
from test_races import service as cases_of
from test_races import simulation
from test_services import FOREVER, a_model, is_running, running_execution, started, until
from test_versions import alias

from gridmill.codec import to_builtins
from gridmill.control.steps.services import service_views
from gridmill.control.usecases.service import Service as Cases
from gridmill.domain.artifact import Artifact, ArtifactKind, Latest, Output
from gridmill.domain.dataset import Aggregate, Basis, DatasetSpec, Lag, Window
from gridmill.domain.job import Job, JobKind
from gridmill.domain.resource import Resource
from gridmill.domain.service import ServiceState
from gridmill.domain.service_features import (
    CHECK_SECONDS,
    DECLARATION,
    FeatureAnswer,
    FeatureQuestion,
    FeatureRule,
    FeatureSettings,
    ViewMode,
    ViewOrders,
)
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.service_spec import ServiceSpec
from gridmill.domain.site import Site, SiteKind
from gridmill.errors import ConflictError, InputError, UnavailableError
from gridmill.ports.store import Put
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation

WINDOWS = DatasetSpec(
    basis=Basis(table="rows", time="at", entity=("id",)),
    windows=(Window(column="x", aggregates=(Aggregate.MEAN,), span_seconds=60.0, table="other/sales"),),
    lags=(Lag(column="x", steps=(1,)),),
)
PLAIN = DatasetSpec(basis=Basis(table="rows", time="at"))


def version(name: str, number: int, kind: ArtifactKind, **details: object) -> Artifact:
    output = Output(kind=kind, uri=f"{name}/{number}", table_version=number, details=details)
    return Artifact(id=f"{name}@{number}", name=name, number=number, output=output, fingerprint=f"{number}")


def dataset(number: int, spec: DatasetSpec) -> Artifact:
    return version("w/d", number, ArtifactKind.DATASET, **{DECLARATION: to_builtins(spec)})


@pytest.fixture
def grid() -> Simulation:
    made = simulation(lambda order: Behaviour(seconds=FOREVER))
    versions = [
        version("w/rows", 1, ArtifactKind.SINK, outages=[], columns=["large"]),
        version("other/sales", 4, ArtifactKind.SINK),
        dataset(1, WINDOWS),
        dataset(2, PLAIN),
        a_model(1, dataset="w/d@1"),
        a_model(2, dataset="w/d@1"),
        a_model(3, dataset="w/d@2"),
    ]
    made.store.commit([Put(noun=one, expected=0) for one in versions])
    return made


@pytest.fixture
def cases(grid: Simulation) -> Cases:
    return cases_of(grid)


def views(grid: Simulation) -> ViewOrders:
    return grid.world.views[running_execution(grid).order.attempt_id]


def held(grid: Simulation) -> list[dict[str, str]]:
    return [{name: one.artifact for name, one in view.tables.items()} for view in views(grid).views]


def test_a_service_gets_the_newest_versions_of_the_tables_behind_its_view(
    grid: Simulation, cases: Cases
) -> None:
    view = started(grid, cases)
    order = grid.world.orders[running_execution(grid).order.attempt_id]
    assert order.versions[0].features == "/simulated/services/rain/features/definition-1"
    assert held(grid) == [{"rows": "w/rows@1", "other/sales": "other/sales@4"}]
    (sent,) = views(grid).views
    assert sent.definition == order.versions[0].features
    assert sent.tables["rows"].output.details == {"outages": []}
    job = running_execution(grid).order.job
    assert job.service is not None
    assert job.service.has_view
    # a load of a table reaches the running process
    load = version("w/rows", 2, ArtifactKind.SINK)
    with grid.node.changing() as transaction:
        transaction.put(load, Latest(name="w/rows", artifact=load.id, run="w-2", order=2))
    assert grid.run_until(lambda: held(grid)[0]["rows"] == "w/rows@2", at_most_steps=200)
    assert is_running(cases.service("rain"))
    assert cases.service("rain").service.generation == view.service.generation


def test_unchanged_versions_are_sent_again_so_that_the_view_is_known_to_be_fresh(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases)
    first = views(grid).checked_at
    assert grid.run_until(lambda: views(grid).checked_at >= first + CHECK_SECONDS, at_most_steps=200)
    assert held(grid) == [{"rows": "w/rows@1", "other/sales": "other/sales@4"}]


def test_a_service_without_windows_has_no_view(grid: Simulation, cases: Cases) -> None:
    started(grid, cases, model="w/m@3")
    assert running_execution(grid).order.attempt_id not in grid.world.views
    job = running_execution(grid).order.job
    assert job.service is not None
    assert not job.service.has_view


def test_requests_that_send_all_features_need_no_view(grid: Simulation, cases: Cases) -> None:
    settings = ServiceSettings(features=FeatureSettings(sent=("*",)))
    view = started(grid, cases, settings=settings)
    assert view.service.features == {}
    rules = FeatureSettings(sent=("*",), rules={"x": FeatureRule(default=1.0)})
    with pytest.raises(InputError, match="'x' is not a feature of w/m@1"):
        cases.update_service("rain", settings=ServiceSettings(features=rules))
    rules = FeatureSettings(sent=("*",), rules={"temp": FeatureRule(default=1.0)})
    with pytest.raises(InputError, match="no feature of w/m@1 is computed by key, so 'temp' has no rule"):
        cases.update_service("rain", settings=ServiceSettings(features=rules))


def test_a_setting_for_an_unknown_feature_is_refused_although_nothing_is_computed(cases: Cases) -> None:
    rules = FeatureSettings(rules={"tmep": FeatureRule(max_age_seconds=3600.0)})
    with pytest.raises(InputError, match="'tmep' is not a feature of w/m@3; did you mean `temp`") as refused:
        cases.start_service("rain", model="w/m@3", settings=ServiceSettings(features=rules))
    assert refused.value.place == "features.rules.tmep"
    assert "temp, wind" in refused.value.hint
    sent = ServiceSettings(features=FeatureSettings(sent=("wnid",)))
    with pytest.raises(InputError, match="'wnid' is not a feature of w/m@3; did you mean `wind`"):
        cases.start_service("rain", model="w/m@3", settings=sent)


def test_a_version_whose_requests_need_other_columns_is_refused(grid: Simulation, cases: Cases) -> None:
    started(grid, cases, model="w/m@3")
    with pytest.raises(
        InputError, match="w/m@1 cannot be served: requests send keys instead of all features"
    ):
        cases.update_service("rain", model="w/m@1")
    cases.set_alias(alias("champion", 3))
    cases.update_service("rain", model="w/m@champion")
    until(grid, cases, is_running)
    cases.set_alias(alias("champion", 1))
    until(grid, cases, lambda view: "requests send keys" in view.service.refusal)
    assert cases.service("rain").service.version == "w/m@3"


def test_an_alias_that_moves_brings_the_definition_of_its_version(grid: Simulation, cases: Cases) -> None:
    cases.set_alias(alias("champion", 1))
    started(grid, cases, model="w/m@champion")
    cases.set_alias(alias("champion", 2))
    view = until(grid, cases, lambda one: is_running(one) and one.service.version == "w/m@2")
    assert set(view.service.features) == {"w/m@1", "w/m@2"}
    back = cases.rollback_service("rain")
    assert back.service.version == "w/m@1"
    until(grid, cases, is_running)
    order = grid.world.orders[running_execution(grid).order.attempt_id]
    assert order.versions[0].features.endswith("definition-1")


def test_a_table_that_was_never_loaded_is_named(grid: Simulation, cases: Cases) -> None:
    spec = DatasetSpec(
        basis=Basis(table="none", time="at", entity=("id",)), lags=(Lag(column="x", steps=(1,)),)
    )
    grid.store.commit([Put(noun=one, expected=0) for one in (dataset(9, spec), a_model(9, dataset="w/d@9"))])
    with pytest.raises(InputError, match="are computed from w/none, which has no version"):
        cases.start_service("rain", model="w/m@9")


def far_resource(grid: Simulation, kind: SiteKind) -> None:
    far = Site(name="lab", kind=kind, nodes=grid.world.nodes())
    grid.store.commit([Put(noun=far, expected=0)])
    grid.node.control.ledger.doubtful = True
    with grid.node.changing() as transaction:
        transaction.put(Resource(name="remote", type=JobKind.SERVICE, site="lab"))


def test_the_nodes_of_ray_copy_the_view_that_the_router_keeps(grid: Simulation, cases: Cases) -> None:
    far_resource(grid, SiteKind.RAY)
    settings = ServiceSettings(accept_open=True)
    cases.start_service("rain", model="w/m@1", resource="remote", settings=settings)
    control = grid.node.control
    jobs = [Job(name="any", service=ServiceSpec(name="rain", routes=routes)) for routes in (True, False)]
    with grid.node.changing() as transaction:
        made = [service_views(control.catalog, grid.storage, transaction, job) for job in jobs]
    ((kept,), (copied,)) = (one.views for one in made if one is not None)
    assert (kept.mode, kept.shared) == (ViewMode.SENT, "")
    assert (copied.mode, copied.shared) == (ViewMode.RECEIVED, kept.folder)
    assert copied.folder == f"views/{Path(kept.folder).name}"
    assert copied.received is not None
    assert "older" in copied.received.problem
    sent_at = [one.sent_at for one in made if one is not None]
    assert sent_at == [None, grid.node.control.timeline.now()]


def test_a_service_at_a_farm_computes_features(grid: Simulation, cases: Cases) -> None:
    far_resource(grid, SiteKind.CLUSTER)
    cases.start_service("rain", model="w/m@1", resource="remote")
    assert cases.service("rain").service.features["w/m@1"].request


def test_the_process_of_a_router_keeps_the_views_that_are_sent(grid: Simulation, cases: Cases) -> None:
    started(grid, cases)
    with grid.node.changing() as transaction:
        for routes, mode in ((True, ViewMode.SENT), (False, ViewMode.LOCAL)):
            job = Job(name="any", service=ServiceSpec(name="rain", routes=routes))
            control = grid.node.control
            made = service_views(control.catalog, grid.storage, transaction, job)
            assert made is not None
            assert [one.mode for one in made.views] == [mode]


def test_a_removed_service_leaves_no_views(grid: Simulation, cases: Cases) -> None:
    started(grid, cases)
    cases.stop_service("rain")
    until(grid, cases, lambda view: not view.service.is_meant_to_run)
    cases.remove_service("rain")
    assert grid.run_until(
        lambda: "services/rain/features" in grid.storage.removed,
        at_most_steps=200,  # type: ignore[attr-defined]
    )


def test_an_alias_that_moves_to_the_canary_keeps_the_definition_of_the_canary(
    grid: Simulation, cases: Cases
) -> None:
    cases.set_alias(alias("champion", 1))
    started(grid, cases, model="w/m@champion")
    cases.update_service("rain", canary="w/m@2")
    defined = until(grid, cases, is_running).service.features["w/m@2"]
    cases.set_alias(alias("champion", 2))
    view = until(grid, cases, lambda one: is_running(one) and one.service.version == "w/m@2")
    assert (view.service.canary, view.service.refusal) == ("", "")
    assert view.service.features["w/m@2"] == defined


def test_an_alias_is_followed_later_if_the_features_of_its_version_could_not_be_defined_now(
    grid: Simulation, cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases.set_alias(alias("champion", 1))
    started(grid, cases, model="w/m@champion")

    def late(question: FeatureQuestion) -> FeatureAnswer:
        raise UnavailableError("the features were not defined within 120 s")

    monkeypatch.setattr(grid.storage, "define_features", late)
    cases.set_alias(alias("champion", 2))
    view = until(grid, cases, lambda view: "not defined within 120 s" in view.message)
    assert view.service.version == "w/m@1"
    monkeypatch.undo()
    cases.set_alias(alias("other", 1))
    view = until(grid, cases, lambda one: is_running(one) and one.service.version == "w/m@2")
    assert view.message == ""


def test_the_view_of_replaced_features_is_kept_fresh_until_the_update_is_in_effect(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases, model="w/m@2")
    (before,) = views(grid).views
    grid.world.broken.add("w/m@2")
    rules = FeatureSettings(reach_back_seconds=7200.0)
    cases.update_service("rain", settings=ServiceSettings(features=rules))
    until(grid, cases, lambda view: view.state is ServiceState.FAILING)
    # replicas of the order before serve, and need their view
    assert [one.definition for one in views(grid).views][1:] == [before.definition]
    cases.stop_service("rain")
    until(grid, cases, lambda view: not view.service.is_meant_to_run)
    grid.world.broken.clear()
    cases.start_service("rain")
    assert until(grid, cases, is_running).service.features_before == ()
    grid.run_until(lambda: len(views(grid).views) == 1, at_most_steps=200)
    assert before.definition not in [one.definition for one in views(grid).views]


def test_an_update_whose_features_were_defined_for_an_earlier_state_of_the_service_is_refused(
    grid: Simulation, cases: Cases
) -> None:
    started(grid, cases)
    define = grid.node.control.storage.define_features

    def slowly(question: FeatureQuestion) -> FeatureAnswer:
        """Another user changes the settings of the features meanwhile."""
        grid.node.control.storage.define_features = define  # type: ignore[method-assign]
        other = FeatureSettings(rules={"x_lag_1": FeatureRule(default=0.0)})
        cases.update_service("rain", settings=ServiceSettings(features=other))
        until(grid, cases, is_running)
        return define(question)

    grid.node.control.storage.define_features = slowly  # type: ignore[method-assign]
    with pytest.raises(ConflictError, match="was changed by another update meanwhile"):
        cases.update_service("rain", model="w/m@2")
    cases.update_service("rain", model="w/m@2")
    assert until(grid, cases, is_running).service.version == "w/m@2"
