"""Each import contract holds, and fails for each of the violations that are tried here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gridmill.plugins import CHECKS, JOBS, SITES
from tests.kit.contracts import ROOT, Contracts, Import

LINT = Path(sys.executable).parent / "lint-imports"

VIOLATIONS: dict[str, tuple[Import, ...]] = {
    "layers": (
        ("gridmill.domain.bad", "gridmill.control.node"),
        ("gridmill.scheduler.bad", "gridmill.transfer.chunk_manifest"),
        ("gridmill.control.bad", "gridmill.sdk.client"),
        ("gridmill.pod.bad", "gridmill.farm.app"),
        ("gridmill.cli.up", "gridmill.bootstrap.host"),
        ("gridmill.sdk.bad", "gridmill.embedded.process"),
    ),
    "cycles": (
        ("gridmill.scheduler.snapshot", "gridmill.scheduler.plan"),
        ("gridmill.domain.amounts", "gridmill.domain.resource"),
        ("gridmill.jobs.context", "gridmill.jobs.sink.run"),
    ),
    "adapters": (
        ("gridmill.stores.bad", "gridmill.transport.server"),
        ("gridmill.auth.bad", "gridmill.stores.sql"),
        ("gridmill.sites.bad", "gridmill.storage.root"),
        ("gridmill.jobs.bad", "gridmill.sites.machine"),
        ("gridmill.clouds.aws.bad", "gridmill.sites.machine"),
    ),
    "kinds-of-sites": (
        ("gridmill.sites.ray.bad", "gridmill.sites.slurm.site"),
        ("gridmill.sites.slurm.bad", "gridmill.sites.farm.site"),
        ("gridmill.sites.farm.bad", "gridmill.sites.local"),
        ("gridmill.sites.cloud.bad", "gridmill.sites.farm.site"),
        ("gridmill.sites.batch.bad", "gridmill.sites.farm.staging"),
    ),
    "one-site": (
        ("gridmill.sites.machine", "gridmill.sites.slurm.commands"),
        ("gridmill.cli.bad", "gridmill.sites.farm.join"),
        ("gridmill.sites.ssh", "gridmill.sites.cloud.keys"),
        ("gridmill.sites.attempt_inputs", "gridmill.sites.batch.exchange"),
    ),
    "kinds-of-jobs": (
        ("gridmill.jobs.sink.bad", "gridmill.jobs.training.run"),
        ("gridmill.jobs.prediction.bad", "gridmill.jobs.training.data"),
        ("gridmill.jobs.dataset.bad", "gridmill.jobs.sink.table"),
    ),
    "online": (
        ("gridmill.control.bad", "gridmill.online.view"),
        ("gridmill.pod.bad", "gridmill.online.features"),
    ),
    "online-features": (
        ("gridmill.online.bad", "gridmill.jobs.sink.table"),
        ("gridmill.online.bad", "gridmill.jobs.training.run"),
    ),
    "one-job": (
        ("gridmill.jobs.main", "gridmill.jobs.sink.run"),
        ("gridmill.pod.bad", "gridmill.jobs.training.run"),
    ),
    "kinds-of-stores": (
        ("gridmill.stores.sqlite", "gridmill.stores.postgresql"),
        ("gridmill.stores.memory", "gridmill.stores.sqlite"),
    ),
    "kinds-of-clouds": (
        ("gridmill.clouds.aws.bad", "gridmill.sites.cloud.boot"),
        ("gridmill.clouds.lambda_cloud.bad", "gridmill.clouds.aws.launch"),
        ("gridmill.clouds.aws.bad", "gridmill.clouds.gcp.launch"),
        ("gridmill.clouds.gcp.bad", "gridmill.clouds.aws.launch"),
        ("gridmill.sites.cloud.bad", "gridmill.clouds.aws.cloud"),
    ),
    "clouds": (
        ("gridmill.control.bad", "gridmill.clouds.aws.cloud"),
        ("gridmill.cli.bad", "gridmill.clouds.aws.offers"),
    ),
    "pure": (
        *(
            (f"{package}.bad", library)
            for package in ("gridmill.domain", "gridmill.scheduler")
            for library in (
                "time",
                "random",
                "os",
                "socket",
                "subprocess",
                "secrets",
                "threading",
                "tempfile",
            )
        ),
    ),
    "light": (("gridmill.control.bad", "numpy"), ("gridmill.transport.bad", "fastapi")),
    "codec": (("gridmill.report.bad", "msgspec"), ("gridmill.sites.bad", "msgspec")),
    "start-up": (
        ("gridmill.cli.bad", "duckdb"),
        ("gridmill.sdk.bad", "pandas"),
        ("gridmill.sites.machine", "ray"),
        ("gridmill.__main__", "torch"),
    ),
    "planner": (
        ("gridmill.scheduler.bad", "gridmill.codec"),
        ("gridmill.scheduler.bad", "gridmill.ports.store"),
    ),
    "cli": (("gridmill.sdk.bad", "gridmill.cli.app"), ("gridmill.bootstrap.bad", "gridmill.cli.up")),
    "sdk": (("gridmill.embedded.bad", "gridmill.sdk.client"), ("gridmill.api.bad", "gridmill.sdk.runs")),
    "node": (
        ("gridmill.cli.bad", "gridmill.embedded.process"),
        ("gridmill.sdk.bad", "gridmill.embedded.process"),
    ),
    "bootstrap": (
        ("gridmill.cli.bad", "gridmill.bootstrap.host"),
        ("gridmill.cli.up", "gridmill.bootstrap.serving"),
        ("gridmill.sdk.bad", "gridmill.bootstrap.node"),
        ("gridmill.testing.bad", "gridmill.bootstrap.home_lock"),
    ),
    "api": (("gridmill.cli.bad", "gridmill.api.app"), ("gridmill.sdk.bad", "gridmill.api.routes")),
    "report": (
        ("gridmill.cli.bad", "gridmill.report.render"),
        ("gridmill.control.bad", "gridmill.report.render"),
    ),
    "testing": (
        ("gridmill.control.bad", "gridmill.testing.faults"),
        ("gridmill.cli.bad", "gridmill.testing.fake_grid"),
    ),
    "control": (
        ("gridmill.cli.bad", "gridmill.control.node"),
        ("gridmill.sdk.bad", "gridmill.control.node"),
        ("gridmill.api.bad", "gridmill.control.ledger"),
    ),
    "kinds-of-ticks": (
        ("gridmill.control.ticks.dispatch", "gridmill.control.ticks.receive"),
        ("gridmill.control.ticks.tear_down", "gridmill.control.ticks.observe"),
        ("gridmill.control.ticks.schedules", "gridmill.control.ticks.backfills"),
    ),
    "ticks": (
        ("gridmill.control.steps.end_attempt", "gridmill.control.ticks.receive"),
        ("gridmill.control.usecases.runs", "gridmill.control.ticks.advance"),
    ),
    "pod": (("gridmill.sites.bad", "gridmill.pod.agent"), ("gridmill.control.bad", "gridmill.pod.journal")),
    "farm": (("gridmill.cli.bad", "gridmill.farm.app"), ("gridmill.sites.farm.bad", "gridmill.farm.app")),
    "serving": (
        ("gridmill.control.bad", "gridmill.serving.parent"),
        ("gridmill.bootstrap.bad", "gridmill.serving.replica"),
    ),
    "declarations": (
        ("gridmill.control.bad", "gridmill.declarations.read"),
        ("gridmill.jobs.bad", "gridmill.declarations.read"),
    ),
    "calls": (
        ("gridmill.cli.bad", "gridmill.rpc.server"),
        ("gridmill.control.bad", "gridmill.rpc.server"),
    ),
    "sites": (
        ("gridmill.control.bad", "gridmill.sites.local"),
        ("gridmill.cli.bad", "gridmill.sites.machine"),
    ),
    "stores": (
        ("gridmill.api.bad", "gridmill.stores.sql"),
        ("gridmill.cli.bad", "gridmill.stores.sql"),
        ("gridmill.control.bad", "gridmill.stores.memory"),
    ),
    "links": (
        ("gridmill.control.bad", "gridmill.transport.server"),
        ("gridmill.cli.bad", "gridmill.transport.tls"),
    ),
    "storage": (
        ("gridmill.control.bad", "gridmill.storage.root"),
        ("gridmill.cli.bad", "gridmill.storage.root"),
    ),
    "auth": (
        ("gridmill.control.bad", "gridmill.auth.vault"),
        ("gridmill.cli.bad", "gridmill.auth.key_file"),
    ),
    "staging": (
        ("gridmill.control.bad", "gridmill.transfer.engine"),
        ("gridmill.transport.bad", "gridmill.transfer.engine"),
    ),
    "http": (("gridmill.control.bad", "gridmill.http.server"), ("gridmill.cli.bad", "gridmill.http.server")),
    "planning": (
        ("gridmill.sdk.bad", "gridmill.scheduler.plan"),
        ("gridmill.cli.bad", "gridmill.scheduler.plan"),
        ("gridmill.api.bad", "gridmill.scheduler.plan"),
        ("gridmill.declarations.bad", "gridmill.scheduler.plan"),
        ("gridmill.farm.bad", "gridmill.scheduler.plan"),
    ),
    "ports": (
        ("gridmill.scheduler.bad", "gridmill.ports.store"),
        ("gridmill.report.bad", "gridmill.ports.grid"),
    ),
    "registry": (("gridmill.cli.bad", "gridmill.plugins"), ("gridmill.sdk.client", "gridmill.plugins")),
    "settings": (("gridmill.control.bad", "gridmill.settings"), ("gridmill.stores.bad", "gridmill.settings")),
    "jobs": (
        ("gridmill.sites.bad", "gridmill.jobs.context"),
        ("gridmill.control.bad", "gridmill.jobs.inspect_versions"),
    ),
}
"""By contract, imports that it forbids."""

IN_FILES: dict[str, Import] = {
    "layers": ("gridmill.domain.bad", "gridmill.control.node"),
    "kinds-of-sites": ("gridmill.sites.ray.bad", "gridmill.sites.slurm.site"),
    "pure": ("gridmill.scheduler.worse", "random"),
    "stores": ("gridmill.api.bad", "gridmill.stores.sql"),
    "codec": ("gridmill.report.bad", "msgspec"),
}
"""Those that are also tried as files, through the command that `make check` calls."""

OPEN_TO_ALL = {
    "gridmill.domain",
    "gridmill.errors",
    "gridmill.codec",
    "gridmill.telemetry",
    "gridmill.process_log",
    "gridmill.disk_space",
    "gridmill.private_files",
    "gridmill.whole_lines",
    "gridmill.process_memory",
    "gridmill.machine_type",
    "gridmill.version",
    "gridmill.__main__",
}
"""What every layer above may import, so that its layer is its whole contract."""

NO_KINDS = {"gridmill.jobs.preflight", "gridmill.stores.migrations"}
"""Packages beside the kinds: the check of all kinds of jobs before a run, and the scripts of Alembic."""


def packages(contracts: Contracts, parent: str = "gridmill") -> set[str]:
    """What lies directly in a package: packages and modules."""
    return set(contracts.graph.find_children(parent))


def test_every_contract_has_two_violations_to_try(contracts: Contracts):
    assert VIOLATIONS.keys() == contracts.by_id.keys()
    assert [name for name, tried in VIOLATIONS.items() if len(tried) < 2] == []


def test_no_contract_has_exceptions(contracts: Contracts):
    assert [name for name in contracts.by_id if contracts.listed(name, "ignore_imports")] == []


def test_every_contract_holds(contracts: Contracts):
    assert [name for name in contracts.by_id if not contracts.holds(name)] == []


@pytest.mark.parametrize(
    ("contract", "importer", "imported"),
    [(name, *tried) for name, each in VIOLATIONS.items() for tried in each],
)
def test_a_contract_fails_when_it_is_violated(
    contracts: Contracts, contract: str, importer: str, imported: str
):
    assert not contracts.holds(contract, (importer, imported))


def test_the_violations_name_modules_that_exist(contracts: Contracts):
    named = {module for tried in VIOLATIONS.values() for pair in tried for module in pair}
    own = {name for name in named if name.startswith("gridmill.") and not name.endswith((".bad", ".worse"))}
    assert own - contracts.modules == set()


@pytest.fixture(scope="module")
def linted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `lint-imports` prints for a copy of the source with the violations in files."""
    folder = tmp_path_factory.mktemp("copy")
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=leave)
    shutil.copy(ROOT / ".importlinter", folder)
    for importer, imported in IN_FILES.values():
        (folder / "src" / f"{importer.replace('.', '/')}.py").write_text(f"import {imported}\n")
    done = subprocess.run(
        [LINT, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    return done.stdout


@pytest.mark.parametrize("contract", IN_FILES)
def test_the_linter_finds_a_violation_in_a_file(contracts: Contracts, linted: str, contract: str):
    assert f"{contracts.by_id[contract].name} BROKEN" in linted


def test_every_package_has_a_layer_and_a_list_of_importers(contracts: Contracts):
    layers = {
        name.strip()
        for line in contracts.listed("layers", "layers")
        for name in line.replace("|", ":").split(":")
    }
    protected = {name for one in contracts.by_id for name in contracts.listed(one, "protected_modules")}
    there = packages(contracts)
    assert there - layers == set(), "give each a line under `layers` in .importlinter"
    assert there - protected - OPEN_TO_ALL == set(), "give each a contract `protected` in .importlinter"
    assert layers - there == set()


def test_every_kind_of_site_and_job_is_independent(contracts: Contracts):
    independent = {name for one in contracts.by_id for name in contracts.listed(one, "modules")}
    from_tables = {
        ".".join(target.split(":")[0].split(".")[:3])
        for table in (SITES, CHECKS, JOBS)
        for target in table.values()
    }
    families = ("gridmill.sites", "gridmill.jobs", "gridmill.clouds", "gridmill.stores")
    folders = {
        name
        for family in families
        if family in contracts.modules
        for name in packages(contracts, family)
        if contracts.graph.find_children(name)
    }
    kinds = {name for name in from_tables | folders if name.startswith(families)}
    assert "gridmill.sites.ray" in kinds, "the kinds are not found any more"
    assert kinds - independent - NO_KINDS == set(), "give each a line in a contract `independence`"
