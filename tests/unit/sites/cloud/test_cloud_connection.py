"""The connection to a rented machine, whose faults do not end the contact."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gridmill.errors import UnavailableError
from gridmill.sites.cloud.connection import MachineConnection, in_contact
from gridmill.sites.cloud.machine import WatchState


class Contacted:
    """A machine that answers contacts with these errors, and then without an error."""

    def __init__(self, *errors: Exception) -> None:
        self.keys = SimpleNamespace(alias="l-1-1")
        self.errors = list(errors)
        self.answered = threading.Event()

    def contact(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.answered.set()


def test_errors_of_any_kind_do_not_end_the_contact_during_an_installation():
    machine = Contacted(UnavailableError("cut"), OSError(24, "Too many open files"), ValueError("text"))
    with in_contact(machine, 0.001, lambda: True):
        assert machine.answered.wait(30)


STATE = WatchState(used_seconds=5, silent_seconds=0, is_working=False)


class Watching(Contacted):
    """A machine with a watcher. `armed` is the number of its starts over SSH."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.armed, self.contacts = STATE, 0, 0

    def contact(self) -> WatchState:
        self.contacts += 1
        return self.state

    def arm(self) -> None:
        self.armed += 1


def test_a_watcher_that_has_stopped_is_started_again_and_shown():
    machine, now = Watching(), [0.0]
    connection = MachineConnection(machine, None, 15.0, lambda: True, lambda: now[0])
    for now[0] in (0.0, 30.0, 59.0):
        connection.tick()
    now[0] = 61.0
    with pytest.raises(UnavailableError, match="watcher of the machine had stopped"):
        connection.tick()
    assert (machine.armed, connection.silent_seconds) == (1, 2.0)
    machine.state = replace(STATE, used_seconds=6)
    for now[0] in (90.0, 149.0):
        connection.tick()
    assert machine.armed == 1


def test_a_control_node_that_does_not_work_makes_no_contact():
    machine, needed = Watching(), [True]
    connection = MachineConnection(machine, None, 15.0, lambda: needed[0], lambda: 0.0)
    connection.tick()
    needed[0] = False
    connection.tick()
    assert machine.contacts == 1
