"""Sites are opened, looked at, changed and removed while they are in use: no port is lost, none is kept."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gridmill.control.background import ThreadRunner
from gridmill.control.site_monitor import PROBE_SECONDS, SiteMonitor
from gridmill.control.steps.problems import problem_of_site
from gridmill.control.usecases.service import Identity, Service
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.artifact import Artifact
from gridmill.domain.farm_protocol import FarmStatus
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.route import Route, TransferRate
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.errors import AwayError, ConflictError, UnavailableError
from gridmill.stores import memory
from gridmill.testing.simulated_site import Behaviour
from gridmill.testing.simulation import Simulation

SMALL = Node(name="small", capacity=Amounts(cpus=2.0, memory_bytes=4 * GIB))
LARGE = Node(name="large", capacity=Amounts(cpus=2.0, memory_bytes=16 * GIB))


class Port:
    """A site's port that says when it was closed; `answer` gives its nodes."""

    def __init__(self, answer: Callable[[], tuple[Node, ...]]) -> None:
        self.answer = answer
        self.closed = False
        self.closing: Callable[[], None] = lambda: None

    def nodes(self) -> tuple[Node, ...]:
        return self.answer()

    def close(self) -> None:
        self.closing()
        self.closed = True


class Grid:
    """A control node, its surveyor, and a site `lab` whose ports are made of `answer`."""

    def __init__(self) -> None:
        simulation = Simulation(store=memory.make(), behave=lambda order: Behaviour())
        simulation.declare_site()
        self.node, self.warnings = simulation.node, simulation.warnings
        self.clock = simulation.clock
        self.control = self.node.control
        self.control.ledger.load()
        self.cases = Service(
            self.node, Identity(version="", home="", address="", embedded=True), render=str, end=str
        )
        self.surveyor = SiteMonitor(self.node)
        self.opened: list[Port] = []
        self.answer: Callable[[], tuple[Node, ...]] = lambda: (SMALL, LARGE)
        self.control.open_site = self._open

    def _open(self, site: Site) -> Port:
        self.opened.append(Port(lambda: self.answer()))
        return self.opened[-1]

    @property
    def site(self) -> Site:
        return self.control.ledger.snapshot.sites["lab"]

    @property
    def living(self) -> list[Port]:
        return [port for port in self.opened if not port.closed]


LAB = Site(name="lab", kind=SiteKind.SIMULATED, address="here")


@pytest.fixture
def grid() -> Grid:
    return Grid()


def unavailable() -> tuple[Node, ...]:
    raise UnavailableError("it does not answer")


def test_a_port_that_was_opened_in_vain_is_closed(grid: Grid):
    grid.cases.add_site(LAB)
    grid.control.sites.pop("lab").close()  # as after a restart
    grid.answer = unavailable
    for _ in range(3):
        grid.surveyor._guarded(grid.site)
    assert grid.living == []
    assert grid.warnings == ["site lab: it does not answer"]
    grid.answer = lambda: (SMALL,)
    grid.surveyor._guarded(grid.site)
    assert [grid.control.sites["lab"]] == grid.living


def away() -> tuple[Node, ...]:
    raise AwayError("nobody is there")


def test_a_site_where_nobody_answers_is_changed_all_the_same(grid: Grid):
    grid.cases.add_site(LAB)
    grid.answer = away
    changed = grid.cases.add_site(replace(LAB, settings={"rate": "1MiB"}), replace=True)
    assert (changed.nodes, changed.settings) == ((SMALL, LARGE), {"rate": "1MiB"})
    assert grid.site == changed
    assert grid.control.site_states.unreachable == {"lab"}
    assert [grid.control.sites["lab"]] == grid.living
    grid.answer = lambda: (SMALL,)
    grid.surveyor._guarded(grid.site)
    assert (grid.site.nodes, grid.control.site_states.unreachable) == ((SMALL,), set())


def test_but_not_added_nor_changed_to_what_is_seen_to_be_wrong(grid: Grid):
    grid.answer = away
    with pytest.raises(AwayError):
        grid.cases.add_site(LAB)
    grid.answer = lambda: (SMALL,)
    grid.cases.add_site(LAB)
    grid.answer = unavailable
    with pytest.raises(UnavailableError):
        grid.cases.add_site(replace(LAB, settings={"rate": "1MiB"}), replace=True)
    assert grid.site.settings == {}
    assert [grid.control.sites["lab"]] == grid.living


def test_what_was_wrong_with_a_site_is_over_when_it_is_added_anew(grid: Grid):
    grid.cases.add_site(LAB)
    grid.answer = unavailable
    grid.surveyor._guarded(grid.site)
    assert problem_of_site(grid.control.problems, "lab")
    grid.answer = lambda: (SMALL,)
    grid.cases.add_site(LAB)
    assert not problem_of_site(grid.control.problems, "lab")


def test_a_port_of_a_site_that_changed_while_it_was_opened_is_closed(grid: Grid):
    grid.cases.add_site(LAB)
    grid.control.sites.pop("lab").close()
    before = grid.site

    def meanwhile() -> tuple[Node, ...]:
        grid.answer = lambda: (SMALL,)
        grid.cases.add_site(replace(LAB, address="there"), replace=True)
        return (LARGE,)

    grid.answer = meanwhile
    grid.surveyor.survey(before)
    assert [grid.control.sites["lab"]] == grid.living
    assert grid.site.nodes == (SMALL,)


def test_what_nobody_expected_of_a_site_ends_no_look_at_others(grid: Grid):
    grid.cases.add_site(LAB)

    def broken() -> tuple[Node, ...]:
        raise OverflowError("port must be 0-65535")

    grid.answer = broken
    grid.surveyor._guarded(grid.site)
    assert grid.warnings == ["the state of site lab cannot be read: OverflowError('port must be 0-65535')"]


def test_a_port_that_takes_its_time_to_close_holds_up_nobody(grid: Grid):
    grid.cases.add_site(LAB)
    grid.control.background = ThreadRunner(lambda: None)
    gate = threading.Event()
    grid.living[0].closing = lambda: gate.wait(120.0)
    grid.cases.remove_site("lab")
    assert "lab" not in grid.control.sites
    assert len(grid.living) == 1
    gate.set()
    grid.control.background.stop(120.0)
    assert grid.living == []


def test_of_two_who_add_different_sites_of_one_name_the_second_is_told(grid: Grid):
    def meanwhile() -> tuple[Node, ...]:
        grid.answer = lambda: (SMALL,)
        grid.cases.add_site(replace(LAB, address="there"))
        return (LARGE,)

    grid.answer = meanwhile
    with pytest.raises(ConflictError):
        grid.cases.add_site(LAB)
    assert grid.site.address == "there"
    assert [grid.control.sites["lab"]] == grid.living


def test_nodes_that_left_are_remembered_until_the_site_is_another(grid: Grid):
    grid.cases.add_site(LAB)
    grid.answer = lambda: (SMALL,)
    grid.surveyor.survey(grid.site)
    assert grid.site.past == (LARGE.capacity,)
    grid.cases.add_site(grid.site)
    assert grid.site.past == (LARGE.capacity,)
    grid.cases.add_site(replace(grid.site, address="there"), replace=True)
    assert grid.site.past == ()


def test_a_site_that_hangs_does_not_keep_others_from_being_looked_at(grid: Grid) -> None:
    """Nor is it asked again while it hangs."""
    asked, seen, go = [], threading.Event(), threading.Event()

    def hangs() -> tuple[Node, ...]:
        asked.append(1)
        go.wait(120)
        return (SMALL,)

    grid.cases.add_site(LAB)
    grid.cases.add_site(replace(LAB, name="next"))
    ports = grid.control.sites
    ports["lab"].answer = hangs
    ports["next"].answer = lambda: (seen.set(), (SMALL, LARGE))[1]
    for _ in range(2):
        grid.surveyor.start_checks()
        assert seen.wait(120)
        seen.clear()
        grid.surveyor._futures["next"].join(120)
    go.set()
    grid.surveyor._futures["lab"].join(120)
    assert asked == [1]


def test_a_site_that_a_run_waits_for_is_not_removed(grid: Grid) -> None:
    grid.cases.add_site(LAB)
    job = Job(name="far", command=CommandSpec(run="true"))
    run = grid.cases.start_run(Pipeline(name="p", at="lab", jobs=(job,))).run
    with pytest.raises(ConflictError, match=f"job 'far' of run {run.id} waits for site 'lab'"):
        grid.cases.remove_site("lab")
    grid.cases.stop_run(run.id)
    for _ in range(3):
        grid.node.tick()
    grid.cases.remove_site("lab")


def test_a_site_that_did_not_answer_or_broke_and_is_removed_is_not_away_when_it_is_added_again(
    grid: Grid,
) -> None:
    def broken() -> tuple[Node, ...]:
        raise OverflowError("port must be 0-65535")

    for answer in (unavailable, broken):
        grid.answer = lambda: (SMALL,)
        grid.cases.add_site(LAB)
        grid.answer = answer
        before = grid.site
        grid.surveyor._guarded(before)
        assert grid.control.site_states.unreachable == {"lab"}
        grid.cases.remove_site("lab")
        assert grid.control.site_states.unreachable == set()
        grid.surveyor._guarded(before)  # a look that was under way
        assert grid.control.site_states.unreachable == set()


class Far(Port):
    """In another place: what it says of itself, and which probe it knows."""

    probes: list[Route]

    def transfer_progress(self, attempt_id: str) -> dict[str, object]:
        return {}

    def farm_status(self) -> FarmStatus:
        return FarmStatus(version="", protocol=1, root="", nodes=())

    def transfer_problems(self) -> dict[str, str]:
        return {}

    def missing_sizes(self, versions: Sequence[Artifact]) -> dict[str, int]:
        return {}

    def probe(self) -> Route:
        return self.probes.pop(0)


class Keeping(Port):
    """Something is kept elsewhere for it."""

    cleared = False
    tidied = 0

    def clean_up_previous(self) -> None:
        self.tidied += 1

    def delete_all(self) -> None:
        assert not self.closed
        self.cleared = True


def test_what_is_kept_for_a_site_goes_when_it_is_removed_and_not_before(grid: Grid) -> None:
    made: list[Keeping] = []

    def opened(site: Site) -> Keeping:
        made.append(Keeping(lambda: (SMALL,)))
        return made[-1]

    grid.control.open_site = opened
    grid.cases.add_site(LAB)
    grid.cases.add_site(replace(LAB, settings={"rate": "1MiB"}), replace=True)
    grid.control.background.apply_results()
    assert [(port.closed, port.cleared) for port in made] == [(True, False), (False, False)]
    grid.surveyor.survey(grid.site)
    assert [port.tidied for port in made] == [1, 1], "each once, when it became the site's"
    grid.cases.remove_site("lab")
    grid.control.background.apply_results()
    assert [(port.closed, port.cleared) for port in made] == [(True, False), (True, True)]


def test_what_is_kept_for_a_farm_that_has_not_answered_goes_too_when_it_is_removed(grid: Grid) -> None:
    far = replace(LAB, kind=SiteKind.CLUSTER, address="10.0.0.1:8700")
    first, last, away = (Keeping(lambda: (SMALL,)) for _ in range(3))
    ports = [first, away, last]
    grid.control.open_site = lambda site: ports.pop(0)
    grid.cases.add_site(far)
    del grid.control.sites["lab"]  # the control node begins anew, and the farm is away
    away.answer = unavailable
    with pytest.raises(UnavailableError):
        grid.surveyor.survey(grid.site)
    assert (away.closed, away.tidied) == (True, 0), "its bucket is not looked into each time"
    grid.cases.remove_site("lab")
    grid.control.background.apply_results()
    assert (last.cleared, last.closed, last.tidied) == (True, True, 0)


def test_that_it_cannot_go_is_said(grid: Grid) -> None:
    far = replace(LAB, kind=SiteKind.CLUSTER, address="10.0.0.1:8700")
    grid.control.open_site = lambda site: Keeping(lambda: (SMALL,))
    grid.cases.add_site(far)
    del grid.control.sites["lab"]

    def none(site: Site) -> Keeping:
        raise UnavailableError("its key is gone")

    grid.control.open_site = none
    grid.cases.remove_site("lab")
    grid.control.background.apply_results()
    assert any("may remain there: its key is gone" in told for told in grid.warnings)


def test_what_a_farm_said_is_forgotten_with_it(grid: Grid) -> None:
    far = Far(lambda: (SMALL,))
    far.probes = [Route()] * 2
    grid.control.open_site = lambda site: far
    grid.cases.add_site(LAB)
    grid.surveyor.survey(grid.site)
    assert set(grid.control.site_states.farm_statuses) == {"lab"}
    before = grid.site
    grid.cases.remove_site("lab")
    assert grid.control.site_states.farm_statuses == {}
    grid.surveyor.survey(before)  # a look that was under way
    assert grid.control.site_states.farm_statuses == {}


def test_a_farm_that_did_not_know_probes_is_probed_again_now_and_then(grid: Grid) -> None:
    pace = TransferRate(transferred_bytes=1.0, seconds=1.0)
    far = Far(lambda: (SMALL,))
    nothing = Route(round_trip_seconds=0.5)
    far.probes = [nothing, nothing, Route(upload=pace, download=pace, round_trip_seconds=9.0)]
    grid.control.open_site = lambda site: far
    grid.cases.add_site(LAB)
    for seconds, left in ((0.0, 1), (PROBE_SECONDS - 1.0, 1), (1.0, 0), (2 * PROBE_SECONDS, 0)):
        grid.clock.advance(seconds)
        grid.surveyor.survey(grid.site)
        assert len(far.probes) == left
    assert grid.site.route == Route(upload=pace, download=pace, round_trip_seconds=0.5)
