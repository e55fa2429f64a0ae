"""The conformance suite for cloud providers. Make a subclass of `CloudSuite` in a test module and give it a
fixture `harness`.

The suite starts machines. Each test ends the machines that it has started, if the test succeeds.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

from gridmill.errors import (
    ConflictError,
    CredentialsError,
    GridmillError,
    NoMachineError,
    QuotaError,
    RefusedError,
    UnavailableError,
)
from gridmill.ports.cloud import CloudPort, LaunchRequest, Leftover, Machine, MachineState, SelfEnd

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f test"
LIVE = (MachineState.PENDING, MachineState.RUNNING)


class CloudHarness(ABC):
    """The tested provider and its surroundings. A subclass selects both.

    `region`, `zone`, `instance_type` and `image` name a machine that can be rented, also as a spot machine.
    `unpriced_type` is a type without a known price; empty if there is none. `many` is the number of machines
    that are started for the test of long lists; it is larger than one page of the provider's list.
    """

    cloud: CloudPort
    region: str
    zone: str
    instance_type: str
    image: str = ""
    unpriced_type: str = ""
    many: int = 8
    deadline_seconds: float = 120.0

    @abstractmethod
    def alive(self) -> Collection[str]:
        """Returns the ids of the machines that truly exist, independent of `cloud`."""

    @abstractmethod
    def step(self) -> None:
        """Lets a short time pass at the provider."""

    @abstractmethod
    def reopen(self) -> None:
        """Closes `cloud` and opens it again, as happens when a control node restarts."""

    @abstractmethod
    def refuse(self, error: type[GridmillError]) -> LaunchRequest:
        """Arranges that the provider refuses the returned request for the reason of NoMachineError,
        QuotaError or RefusedError."""

    @abstractmethod
    def fail(self, method: str, fault: str) -> None:
        """Makes the next call of a method fail: with the fault `before` by a server error without an effect,
        with the fault `after` by a lost answer."""

    @abstractmethod
    def refuse_credentials(self, refuse: bool) -> None:
        """Makes the provider refuse the credentials, or accept them again."""

    def request(self, token: str, *, lease: str = "lease-1", owner: str = "grid-a") -> LaunchRequest:
        """Returns a request for a machine."""
        return LaunchRequest(
            token=token,
            lease=lease,
            owner=owner,
            region=self.region,
            zone=self.zone,
            instance_type=self.instance_type,
            image=self.image,
            spot=False,
            disk_bytes=20 * 2**30,
            ssh_public_key=PUBLIC_KEY,
            user_data="#!/bin/sh\ntrue\n",
            max_seconds=3600.0,
        )

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Steps until the condition is true. Raises AssertionError if the condition is not true after
        `deadline_seconds`."""
        until = time.monotonic() + self.deadline_seconds
        while not condition():
            assert time.monotonic() < until, f"waited in vain until {what}"
            self.step()

    def listed(self, owner: str = "grid-a") -> dict[str, Machine]:
        """Returns the machines that the provider lists and that have not ended, by id."""
        return {one.id: one for one in self.cloud.machines(owner) if one.state is not MachineState.ENDED}

    def launch(self, token: str, *, lease: str = "lease-1", owner: str = "grid-a") -> Machine:
        """Starts a machine and waits until the provider lists it."""
        machine = self.cloud.launch(self.request(token, lease=lease, owner=owner))
        self.seen(machine)
        return machine

    def seen(self, machine: Machine) -> Machine:
        """Returns a machine that has not ended as the provider lists it, when the provider lists it."""
        found: list[Machine] = []

        def is_listed() -> bool:
            found.extend(one for one in self.listed("").values() if one.id == machine.id)
            return bool(found)

        self.wait(is_listed, f"{machine.id} is listed")
        return found[0]

    def clean_up(self) -> None:
        """Ends all machines and deletes everything that belongs to them."""

        def have_ended() -> bool:
            for machine in self.listed("").values():
                self.cloud.terminate(machine)
            return not self.listed("") and not self.alive()

        self.wait(have_ended, "all machines have ended")
        self.wait(self.delete_leftovers, "all leftovers are deleted")

    def delete_leftovers(self) -> bool:
        """Deletes the leftovers that are not in use. Returns whether none is left."""
        return self.deleted(self.cloud.leftovers()) and not self.cloud.leftovers()

    def deleted(self, leftovers: Sequence[Leftover]) -> bool:
        """Deletes these leftovers, if they are not in use. Returns whether all of them are deleted."""
        in_use = 0
        for leftover in leftovers:
            try:
                self.cloud.delete(leftover)
            except ConflictError:
                in_use += 1
        return in_use == 0


class CloudSuite:
    """The tests of the conformance suite. Each test needs a new `harness`."""

    def test_the_account_has_a_name_and_quotas_in_the_region(self, harness: CloudHarness) -> None:
        """Checks that the quotas belong to the requested regions and that no right is missing."""
        check = harness.cloud.check_account(harness.region)
        assert check.account
        assert harness.cloud.account_name() == check.account
        assert check.missing_rights == ()
        assert all(quota.region.startswith(harness.region) and quota.limit >= 0 for quota in check.quotas)
        assert all(quota.types and quota.unit for quota in check.quotas)

    def test_the_traits_are_possible(self, harness: CloudHarness) -> None:
        """Checks the properties of the provider."""
        traits = harness.cloud.traits
        assert isinstance(traits.self_end, SelfEnd)
        gaps = (traits.list_lag_seconds, traits.launch_gap_seconds, traits.call_gap_seconds)
        assert min(*gaps, traits.spot_notice_seconds, traits.least_billed_seconds) >= 0

    def test_offers_have_sizes_zones_and_prices(self, harness: CloudHarness) -> None:
        """Checks that each offer exists once, and that a price is unknown or above zero."""
        offers = harness.cloud.offers()
        assert len({(offer.region, offer.instance_type) for offer in offers}) == len(offers) > 0
        for offer in offers:
            assert offer.zones, offer
            assert min(offer.cpus, offer.memory_bytes) > 0, offer
            assert offer.gpus >= 0, offer
            assert (offer.gpus > 0) == (offer.gpu_memory_bytes > 0), offer
            assert offer.price_micros is None or offer.price_micros > 0, offer
            assert offer.spot_price_micros is None or offer.spot_price_micros > 0, offer
            assert offer.architecture in ("x86_64", "arm64"), offer

    def test_offers_of_a_region_and_a_type(self, harness: CloudHarness) -> None:
        """Checks both filters of the offers. A region is given by the beginning of its name."""
        offers = harness.cloud.offers(harness.region[:-1], harness.instance_type)
        assert harness.region in {offer.region for offer in offers}
        assert {offer.instance_type for offer in offers} == {harness.instance_type}
        assert any(harness.zone in offer.zones for offer in offers)
        assert harness.cloud.offers("no-such-region") == ()
        assert harness.cloud.offers("", "no-such-type") == ()

    def test_an_unknown_price_is_none(self, harness: CloudHarness) -> None:
        """Checks that a type without a known price is offered."""
        if harness.unpriced_type:
            offers = harness.cloud.offers("", harness.unpriced_type)
            assert offers
            assert {offer.price_micros for offer in offers} == {None}

    def test_a_machine_has_the_tags_of_its_request(self, harness: CloudHarness) -> None:
        """Checks the answer to a launch, and the entry in the list of machines."""
        machine = harness.launch("token-1", lease="lease-7")
        for seen in (machine, harness.seen(machine)):
            assert (seen.lease, seen.owner, seen.token) == ("lease-7", "grid-a", "token-1")
            assert (seen.region, seen.zone) == (harness.region, harness.zone)
            assert seen.instance_type == harness.instance_type
            assert seen.state in LIVE
            assert seen.native_state
            assert not seen.spot
            assert seen.provider == harness.cloud.offers(harness.region)[0].provider
        assert list(harness.alive()) == [machine.id]
        harness.wait(lambda: bool(harness.seen(machine).address), "the machine has an address")
        assert harness.seen(machine).launched is not None
        harness.clean_up()

    def test_a_spot_machine_is_listed_as_one(self, harness: CloudHarness) -> None:
        """Checks the type of the rental."""
        machine = harness.cloud.launch(replace(harness.request("token-1"), spot=True))
        assert machine.spot
        assert harness.seen(machine).spot
        harness.clean_up()

    def test_a_repeated_launch_returns_the_same_machine(self, harness: CloudHarness) -> None:
        """Checks that a token starts one machine, also if the provider does not list the machine yet, and
        after a restart of the control node."""
        ids = {harness.cloud.launch(harness.request("token-1")).id for _ in range(2)}
        harness.launch("token-1")
        harness.reopen()
        ids.add(harness.launch("token-1").id)
        assert list(harness.alive()) == list(ids)
        harness.clean_up()

    def test_a_repeated_launch_at_the_same_time(self, harness: CloudHarness) -> None:
        """Checks that several threads with the same token start one machine. The provider may refuse all
        requests but one for the moment."""

        def launch(_: int) -> str:
            try:
                return harness.cloud.launch(harness.request("token-1")).id
            except UnavailableError:
                return ""

        with ThreadPoolExecutor(4) as threads:
            ids = set(threads.map(launch, range(4))) - {""}
        ids.add(harness.launch("token-1").id)
        assert list(harness.alive()) == list(ids)
        harness.clean_up()

    def test_a_repeated_launch_of_an_ended_machine_starts_nothing(self, harness: CloudHarness) -> None:
        """Checks a repeated launch after the end of the machine: it returns the ended machine or is
        refused."""
        machine = harness.launch("token-1")
        harness.cloud.terminate(machine)
        harness.wait(lambda: not harness.alive(), "the machine has ended")
        with suppress(ConflictError, RefusedError):
            again = harness.cloud.launch(harness.request("token-1"))
            assert again.id == machine.id
            assert again.state not in LIVE
        assert not harness.alive()
        harness.clean_up()

    def test_a_token_belongs_to_its_parameters(self, harness: CloudHarness) -> None:
        """Checks that the same token with other parameters is refused with ConflictError, because a machine
        of the token may exist. No second machine is started."""
        machine = harness.launch("token-1")
        with raises(ConflictError):
            harness.cloud.launch(replace(harness.request("token-1"), disk_bytes=40 * 2**30))
        assert list(harness.alive()) == [machine.id]
        harness.clean_up()

    def test_two_tokens_are_two_machines(self, harness: CloudHarness) -> None:
        """Checks two launches for one lease."""
        ids = {harness.launch(token).id for token in ("token-1", "token-2")}
        assert set(harness.alive()) == ids
        harness.wait(lambda: set(harness.listed()) == ids, "both machines are listed")
        harness.clean_up()

    def test_all_of_many_machines_are_listed(self, harness: CloudHarness) -> None:
        """Checks that the list is not limited to one page of the provider, and has no machine twice."""
        ids = {
            harness.launch(f"token-{number}", lease=f"lease-{number}").id for number in range(harness.many)
        }
        machines = harness.cloud.machines("grid-a")
        assert len(ids) == harness.many
        assert len(machines) == len({one.id for one in machines})
        harness.wait(lambda: ids == set(harness.listed()), "all machines are listed")
        leases = {f"lease-{number}" for number in range(harness.many)}
        harness.wait(
            lambda: {one.lease for one in harness.cloud.leftovers()} in (set(), leases),
            "the resources of all machines are listed",
        )
        harness.clean_up()

    def test_machines_of_another_grid_are_apart(self, harness: CloudHarness) -> None:
        """Checks the filter by owner, for machines and for everything else."""
        ours, theirs = harness.launch("token-1"), harness.launch("token-2", lease="lease-2", owner="grid-b")
        harness.wait(lambda: set(harness.listed("grid-a")) == {ours.id}, "our machine is listed")
        harness.wait(lambda: set(harness.listed("grid-b")) == {theirs.id}, "their machine is listed")
        harness.wait(lambda: set(harness.listed("")) == {ours.id, theirs.id}, "both are listed")
        for owner in ("grid-a", "grid-b"):
            assert {one.owner for one in harness.cloud.leftovers(owner)} <= {owner}
        assert not harness.cloud.machines("grid-c")
        assert not harness.cloud.leftovers("grid-c")
        harness.clean_up()

    def test_a_machine_ends(self, harness: CloudHarness) -> None:
        """Checks that a terminated machine really ends and that the provider confirms the end, and that
        other machines continue to run. A repeated call succeeds."""
        machine, other = harness.launch("token-1"), harness.launch("token-2", lease="lease-2")
        harness.cloud.terminate(machine)
        harness.cloud.terminate(machine)
        harness.wait(lambda: machine.id not in harness.alive(), "the machine has ended")
        harness.wait(lambda: machine.id not in harness.listed(), "the end is confirmed")
        harness.cloud.terminate(machine)
        assert list(harness.alive()) == [other.id]
        harness.clean_up()

    def test_an_unknown_machine_ends_without_an_error(self, harness: CloudHarness) -> None:
        """Checks that a machine that does not exist counts as ended."""
        machine = harness.launch("token-1")
        harness.cloud.terminate(replace(machine, id=unknown_id(machine.id)))
        assert list(harness.alive()) == [machine.id]
        harness.clean_up()

    def test_everything_that_a_lease_leaves_can_be_deleted(self, harness: CloudHarness) -> None:
        """Checks that leftovers name their lease and owner, that a leftover can be deleted after the end of
        its machine, and that a repeated deletion succeeds."""
        machine = harness.launch("token-1")
        harness.cloud.terminate(machine)
        harness.wait(lambda: machine.id not in harness.alive(), "the machine has ended")
        seen = harness.cloud.leftovers()
        assert {(one.lease, one.owner) for one in seen} <= {("lease-1", "grid-a")}
        assert all(one.kind and one.id and one.region for one in seen)
        for _ in range(2):
            harness.wait(lambda: harness.deleted(seen), "the resources of the machine are deleted")
        harness.wait(harness.delete_leftovers, "all leftovers are deleted")
        harness.clean_up()

    def test_a_leftover_in_use_is_not_deleted(self, harness: CloudHarness) -> None:
        """Checks that the resources of a running machine are deleted, or kept with ConflictError. The
        machine continues to run, and everything can be deleted after its end."""
        machine = harness.launch("token-1")
        for leftover in harness.cloud.leftovers():
            try:
                harness.cloud.delete(leftover)
            except ConflictError:
                assert leftover.kind not in ("key", "object"), leftover
        assert list(harness.alive()) == [machine.id]
        harness.clean_up()

    def test_a_launch_without_a_free_machine(self, harness: CloudHarness) -> None:
        """Checks NoMachineError."""
        self._check_refusal(harness, NoMachineError)

    def test_a_launch_beyond_the_quota(self, harness: CloudHarness) -> None:
        """Checks QuotaError."""
        self._check_refusal(harness, QuotaError)

    def test_a_launch_that_is_refused_for_good(self, harness: CloudHarness) -> None:
        """Checks RefusedError."""
        self._check_refusal(harness, RefusedError)

    def _check_refusal(self, harness: CloudHarness, error: type[GridmillError]) -> None:
        """Checks that the reason of a refusal has its own class, that no machine was started, and that
        everything that was created before the refusal can be deleted."""
        request = harness.refuse(error)
        with raises(error) as caught:
            harness.cloud.launch(request)
        assert caught[0].code == error.code
        assert caught[0].message
        assert not harness.alive()
        assert request.token not in {one.token for one in harness.listed("").values()}
        harness.wait(harness.delete_leftovers, "all leftovers are deleted")

    def test_a_launch_whose_answer_is_lost(self, harness: CloudHarness) -> None:
        """Checks that the machine is found by its token, and that a repeated launch returns it."""
        harness.fail("launch", "after")
        with raises(UnavailableError):
            harness.cloud.launch(harness.request("token-1"))
        assert len(harness.alive()) == 1
        found = harness.cloud.launch(harness.request("token-1"))
        assert list(harness.alive()) == [found.id]
        seen = harness.seen(found)
        assert (seen.token, seen.lease) == ("token-1", "lease-1")
        harness.clean_up()

    def test_a_launch_that_fails_before_its_effect(self, harness: CloudHarness) -> None:
        """Checks that a server error is no refusal, and that the launch can be repeated."""
        harness.fail("launch", "before")
        with raises(UnavailableError) as caught:
            harness.cloud.launch(harness.request("token-1"))
        assert not isinstance(caught[0], CredentialsError)
        assert not harness.alive()
        machine = harness.launch("token-1")
        assert list(harness.alive()) == [machine.id]
        harness.clean_up()

    def test_server_errors_of_the_other_calls(self, harness: CloudHarness) -> None:
        """Checks that a list that fails is an error and never an empty list, and that a failed termination
        is not reported as a success."""
        machine = harness.launch("token-1")
        harness.fail("machines", "before")
        with raises(UnavailableError):
            harness.cloud.machines("grid-a")
        harness.fail("leftovers", "before")
        with raises(UnavailableError):
            harness.cloud.leftovers("grid-a")
        harness.fail("terminate", "before")
        with raises(UnavailableError):
            harness.cloud.terminate(machine)
        assert list(harness.alive()) == [machine.id]
        harness.clean_up()

    def test_refused_credentials(self, harness: CloudHarness) -> None:
        """Checks that each call raises CredentialsError, and succeeds when the credentials are accepted
        again."""
        machine = harness.launch("token-1")
        harness.refuse_credentials(True)
        calls: tuple[Callable[[], object], ...] = (
            lambda: harness.cloud.check_account(harness.region),
            lambda: harness.cloud.launch(harness.request("token-2")),
            lambda: harness.cloud.machines("grid-a"),
            lambda: harness.cloud.leftovers("grid-a"),
            lambda: harness.cloud.terminate(machine),
        )
        for call in calls:
            with raises(CredentialsError):
                call()
        harness.refuse_credentials(False)
        assert list(harness.alive()) == [harness.seen(machine).id]
        harness.clean_up()

    def test_closing_ends_no_machine(self, harness: CloudHarness) -> None:
        """Checks that the machines are found after the interface was closed and opened again."""
        machine = harness.launch("token-1")
        harness.reopen()
        assert list(harness.alive()) == [machine.id]
        assert harness.seen(machine).token == "token-1"
        harness.clean_up()


@contextmanager
def raises(error: type[GridmillError]) -> Iterator[list[GridmillError]]:
    """Checks that the block raises this error, and adds the error to the list that it yields."""
    caught: list[GridmillError] = []
    try:
        yield caught
    except error as raised:
        caught.append(raised)
        return
    raise AssertionError(f"{error.__name__} was not raised")


def unknown_id(machine_id: str) -> str:
    """Returns the id of a machine that does not exist, in the form of the given id."""
    return machine_id[:-4] + ("0000" if machine_id[-4:] != "0000" else "1111")
