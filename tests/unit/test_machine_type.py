"""The type of a machine, under which measurements are stored."""

import os

from gridmill.machine_type import machine_type


def test_the_type_of_this_machine_has_its_cpus_and_does_not_change():
    name, _, cpus = machine_type().rpartition(", ")
    assert name
    assert cpus.split()[0] == str(os.cpu_count())
    assert machine_type() == machine_type()
