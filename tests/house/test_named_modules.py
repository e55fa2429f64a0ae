"""Modules that are loaded by a name in a string keep the import contracts too, except those listed here."""

from tests.house.contracts import Contracts, named_modules

PLUG_INS = {"gridmill.plugins", "gridmill"}
"""The table of plug-ins, and the public names of the package, which load on first use."""

HEAVY = {"light", "start-up"}
"""Contracts of what loads at start: a module that is loaded by name on first use does not break them."""

PROCESSES = {
    ("gridmill.sdk.embedded_node", "gridmill.embedded"),
    ("gridmill.sites.preload", "gridmill.pod.standby"),
    ("gridmill.sites.machine", "gridmill.pod"),
    ("gridmill.sites.processes", "gridmill.pod"),
    ("gridmill.sites.processes", "gridmill.pod.cleanup"),
    ("gridmill.storage.peek", "gridmill.jobs.peek"),
    ("gridmill.storage.preflight", "gridmill.jobs.preflight"),
}
"""Started, or looked for, as a process of its own (`python -m`): nothing is imported."""

BREACHES = {
    ("gridmill.cli.validate", "gridmill.storage.preflight"),
    ("gridmill.sdk.discovery", "gridmill.bootstrap"),
    ("gridmill.sdk.loaded", "gridmill.jobs.training.onnx_graph"),
}
"""What is known and is to go: nothing is added here."""


def test_modules_named_in_strings_break_no_contract(contracts: Contracts):
    tried = [name for name in contracts.by_id if name not in HEAVY]
    named = [
        pair
        for pair in named_modules(contracts)
        if pair[0] not in PLUG_INS
        and pair not in PROCESSES
        and not contracts.graph.direct_import_exists(importer=pair[0], imported=pair[1])
    ]
    assert len(named) > 10, "names are not found any more"
    kept = [pair for pair in named if pair not in BREACHES]
    together = [name for name in tried if not contracts.holds(name, *kept)]
    broken = {(pair, name) for pair in kept for name in together if not contracts.holds(name, pair)}
    assert (broken, together) == (set(), [])


def test_breaches_that_are_gone_are_not_listed_any_more(contracts: Contracts):
    assert (BREACHES | PROCESSES) - named_modules(contracts).keys() == set()
