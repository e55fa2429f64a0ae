"""The connection to a rented machine, whose faults do not end the contact."""

import threading
from types import SimpleNamespace

from gridmill.errors import UnavailableError
from gridmill.sites.cloud.connection import in_contact


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
    with in_contact(machine, 0.001):
        assert machine.answered.wait(30)
