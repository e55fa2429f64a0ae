"""Which machines of the provider's list no lease uses, and which of them are ended."""

from tests.kit.renting_world import RentingWorld, a_deployment

from gridmill.domain.frozen import replace
from gridmill.domain.lease import LeaseState, TryState
from gridmill.domain.machine import Leftover, Machine, MachineState
from gridmill.scheduler.rental_calls import Call
from gridmill.scheduler.rental_list import MachineList
from gridmill.scheduler.renting import decide


def a_world(**fields) -> RentingWorld:
    """A world with one starting deployment."""
    return RentingWorld(deployments={"burst-1": a_deployment()}, **fields)


def calls(world: RentingWorld, call: Call) -> list:
    """The executed actions of one kind."""
    return [one for one in world.executed if one.call is call]


def replace_machine(world: RentingWorld, machine: Machine):
    """A real machine beside the first one."""
    return type(world.real[0])(machine=machine, started=world.now, shown_at=world.now)


def test_a_machine_of_an_unknown_lease_is_shown_and_not_ended():
    world = a_world()
    world.until(LeaseState.READY)
    stray = replace(world.real[0].machine, id="i-99", lease="lease-77", token="lease-77-1")
    world.real.append(replace_machine(world, stray))
    world.step(30.0)
    world.step()
    plan = world.step()
    assert plan.strangers == {
        "i-99": "machine i-99 (g5.xlarge in us-east-1a) at aws has the tags of a request of lease"
        " lease-77, which is not in the store: it costs 1.00 USD per hour. `gridmill reap aws --owner"
        " grid --lease lease-77 --yes` ends it"
    }
    assert calls(world, Call.TERMINATE) == []


def test_a_machine_of_a_closed_lease_is_ended():
    world = a_world()
    world.until(LeaseState.READY)
    world.release()
    world.until(LeaseState.CLOSED)
    late = replace(world.real[0].machine, id="i-98")
    world.real.append(replace_machine(world, late))
    world.leftovers["disk"] = Leftover(kind="volume", id="disk", region="r", lease="lease-1", owner="grid")
    while world.alive() or world.leftovers:
        world.step(60.0)
        assert world.now < 10_000
    assert "i-98" in [one.key for one in calls(world, Call.TERMINATE)]


def test_a_machine_that_is_listed_again_after_its_end_is_ended():
    world = a_world()
    world.until(LeaseState.READY)
    (hidden,) = world.real
    world.real.clear()
    world.fails = lambda action: "unavailable" if action.call is Call.DELETE else ""
    world.release()
    while world.lease().tries[0].state is not TryState.ENDED:
        world.step()
        assert world.now < 2000
    world.real.append(type(hidden)(machine=hidden.machine, started=hidden.started, shown_at=world.now))
    while world.alive():
        plan = world.step()
        assert world.now < 3000
    assert "machine i-1 (g5.xlarge in us-east-1a) at aws is not used by its lease" in plan.strangers["i-1"]
    world.fails = None
    world.until(LeaseState.CLOSED)


def test_a_machine_of_a_closed_lease_is_shown_until_it_has_ended():
    world = a_world()
    world.until(LeaseState.READY)
    world.release()
    world.until(LeaseState.CLOSED)
    protected = replace(world.real[0].machine, id="i-98", state=MachineState.RUNNING)
    world.latest = replace(world.latest, at=world.now, machines=(protected,))
    assert decide(world.situation(), world.now).strangers == {
        "i-98": "machine i-98 (g5.xlarge in us-east-1a) at aws is not used by its lease lease-1 any more: it"
        " costs 1.00 USD per hour. Gridmill ends it, and `gridmill reap aws --owner grid --lease lease-1"
        " --yes` ends it without the control node"
    }


def test_a_machine_of_a_request_that_a_restored_store_does_not_have_is_not_ended():
    world = a_world()
    world.step()
    world.step()
    real = Machine(
        id="i-96",
        provider="aws",
        region="us-east-1",
        zone="us-east-1a",
        instance_type="g5.xlarge",
        state=MachineState.RUNNING,
        lease="lease-1",
        owner="grid",
        token="lease-1-of-the-lost-store",
    )
    world.leftovers["disk"] = Leftover(kind="volume", id="disk", region="r", lease="lease-1", owner="grid")
    world.closed["lease-1"] = replace(world.leases.pop("lease-1"), state=LeaseState.CLOSED)
    world.deployments.clear()
    world.latest = replace(
        world.latest, at=world.now, machines=(real,), leftovers=tuple(world.leftovers.values())
    )
    plan = decide(world.situation(), world.now)
    assert [one.call for one in plan.actions if one.call in (Call.TERMINATE, Call.DELETE)] == []
    assert plan.strangers.keys() == {"i-96"}
    assert "lease-1, which is not in the store" in plan.strangers["i-96"]
    only = replace(world.latest, machines=())
    plan = decide(replace(world.situation(), latest=only), world.now)
    assert plan.strangers == {
        "disk": "volume disk in r at aws has the tags of lease lease-1, which is not in the store. `gridmill"
        " reap aws --owner grid --lease lease-1 --yes` deletes it"
    }


def test_the_command_for_an_unknown_machine_of_an_open_lease_names_what_else_it_ends():
    world = a_world()
    world.until(LeaseState.READY)
    stray = replace(world.real[0].machine, id="i-95", token="lease-1-of-the-lost-store")
    world.latest = replace(world.latest, at=world.now, machines=(world.real[0].machine, stray))
    plan = decide(world.situation(), world.now)
    assert plan.strangers.keys() == {"i-95"}
    assert plan.strangers["i-95"].endswith(
        "`gridmill reap aws --owner grid --lease lease-1 --yes` ends it, and all other machines of the lease,"
        " which is open"
    )
    assert [one.key for one in plan.actions if one.call is Call.TERMINATE] == []


def test_a_command_for_a_resource_without_tags_never_covers_all_machines():
    world = a_world()
    world.step()
    disk = Leftover(kind="volume", id="disk", region="r", lease="", owner="")
    world.latest = replace(world.latest, leftovers=(disk,))
    text = decide(world.situation(), world.now).strangers["disk"]
    assert "`gridmill reap aws --owner GRID --lease LEASE --yes` deletes it" in text


def test_the_machines_of_another_site_at_the_same_account_are_left_alone():
    world = a_world()
    world.until(LeaseState.READY)
    other = replace(
        world.situation(),
        leases=(),
        deployments=(),
        elsewhere=frozenset({"lease-1"}),
        latest=MachineList(
            at=world.now,
            machines=(world.real[0].machine,),
            leftovers=tuple(world.leftovers.values()),
        ),
    )
    plan = decide(other, world.now)
    assert (dict(plan.strangers), [one.call for one in plan.actions if one.call is not Call.LIST]) == ({}, [])
    assert decide(replace(other, elsewhere=frozenset()), world.now).strangers.keys() == {"i-1"}


def test_a_second_machine_of_the_same_request_is_ended():
    world = a_world()
    world.until(LeaseState.READY)
    world.real.append(replace_machine(world, replace(world.real[0].machine, id="i-97")))
    while len(world.alive()) > 1:
        world.step()
        assert world.now < 2000
    assert world.lease().state is LeaseState.READY
    assert [one.machine.id for one in world.alive()] == ["i-1"]
