"""Modules that are loaded by a name in a string keep the import contracts too."""

from tests.kit.contracts import Contracts, named_modules

PLUG_INS = {"gridmill.plugins", "gridmill"}
"""The table of plug-ins, and the public names of the package, which load on first use."""

HEAVY = {"light", "start-up"}
"""Contracts of what loads at start: a module that is loaded by name on first use does not break them."""

PROCESSES = {
    ("gridmill.farm.confinement", "gridmill.pod.confined"),
    ("gridmill.pod.start", "gridmill.serving"),
    ("gridmill.sdk.embedded_node", "gridmill.embedded"),
    ("gridmill.sites.batch.context", "gridmill.bootstrap.batch_attempt"),
    ("gridmill.sites.batch.runner", "gridmill.pod"),
    ("gridmill.sites.machine_memory", "gridmill.pod"),
    ("gridmill.sites.machine_memory", "gridmill.pod.standby"),
    ("gridmill.sites.preload", "gridmill.pod.standby"),
    ("gridmill.sites.process_table", "gridmill.pod"),
    ("gridmill.sites.processes", "gridmill.pod"),
    ("gridmill.sites.processes", "gridmill.pod.cleanup"),
    ("gridmill.storage.define_process", "gridmill.online.define"),
    ("gridmill.storage.inspect_process", "gridmill.jobs.inspect_versions"),
    ("gridmill.storage.preflight_process", "gridmill.jobs.preflight"),
}
"""Started, or looked for, as a process of its own (`python -m`): nothing is imported."""


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
    together = [name for name in tried if not contracts.holds(name, *named)]
    broken = {(pair, name) for pair in named for name in together if not contracts.holds(name, pair)}
    assert (broken, together) == (set(), [])


def test_processes_that_are_not_started_any_more_are_not_listed(contracts: Contracts):
    assert PROCESSES - named_modules(contracts).keys() == set()
