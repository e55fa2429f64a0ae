"""The tables of plug-ins. Each table maps the name of a plug-in to "module:factory". The entry points of
installed packages have the same form and extend these tables.

A package adds its own record stores, sites, links, providers of machines and batch services with the
entry-point groups `gridmill.stores`, `gridmill.sites`, `gridmill.links`, `gridmill.clouds`,
`gridmill.cloud_settings` and `gridmill.batches`. Built-in plug-ins have no more rights than the plug-ins of
other packages. (The kinds of jobs are defined in `domain/job.py`.)
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from gridmill.errors import NotFoundError

JOBS: Mapping[str, str] = {
    "sink": "gridmill.jobs.sink.run:run",
    "dataset": "gridmill.jobs.dataset.run:run",
    "training": "gridmill.jobs.training.run:run",
    "prediction": "gridmill.jobs.prediction.run:run",
}
"""The functions that run the built-in kinds of jobs. Each function takes a JobContext and returns a
JobResult. (There is no function for `command`, because the pod itself executes these jobs.)"""

PREIMPORTS: Mapping[str, tuple[str, ...]] = {
    "sink": ("pyarrow", "deltalake", "duckdb"),
    "dataset": ("pyarrow", "deltalake", "duckdb"),
    "training": ("numpy", "pyarrow.parquet", "safetensors", "onnx", "onnxruntime", "threadpoolctl"),
    "prediction": ("numpy", "pyarrow.parquet", "safetensors", "onnxruntime"),
    "service": (),
    "command": (),
}
"""The modules that the zygote (the process from which jobs are forked) imports when it starts, for each type
of pod. A test has shown for each module that a process can be forked safely after the import."""

MODEL_PREIMPORTS: Mapping[str, tuple[str, ...]] = {
    "lstm": ("torch",),
    "mlp": ("torch",),
    "gbdt": ("sklearn.ensemble",),
    "linear": ("sklearn.linear_model",),
}
"""Further modules, by kind of model, that the zygote (the process from which jobs are forked) imports before
it forks the first training of a model of this kind. These modules need seconds and memory that the trainings
of other models do not need. A test has shown for each of these modules that a process can be forked safely
after the import."""

SITES: Mapping[str, str] = {
    "local": "gridmill.sites.local:make",
    "slurm": "gridmill.sites.slurm.site:make",
    "ray": "gridmill.sites.ray.site:make",
    "cluster": "gridmill.sites.farm.site:make",
    "cloud": "gridmill.sites.cloud.site:make",
    "batch": "gridmill.sites.batch.site:make",
    "simulated": "gridmill.testing.second_machine:make",
}
"""The functions that open a site. Each of these functions takes Settings, a Site and Doors, and returns a
SitePort. The function for `local` takes only the settings."""
MACHINES: Mapping[str, str] = {
    "join": "gridmill.sites.farm.join:join_machine",
    "open": "gridmill.sites.farm.site:open_machine",
    "settings": "gridmill.sites.farm.site:machine_settings",
    "exports": "gridmill.sites.farm.site:open_exports",
    "results": "gridmill.sites.farm.reaped_results:open_results",
}
"""The functions with which a site uses the light server on one of its machines: `join` makes this home a
tenant of the server, `open` returns the SitePort of the machine, `settings` returns the settings that the
site may have for its machines, with their descriptions, `exports` opens the buckets of the site (results that
machines exported, and data in transfer), and `results` finds exported results without the records of a
home."""
WISHES: Mapping[str, str] = {
    "slurm": "gridmill.sites.slurm.settings:check_resource",
    "cluster": "gridmill.sites.farm.site:check_resource",
    "cloud": "gridmill.sites.cloud.settings:check_resource",
    "batch": "gridmill.sites.batch.settings:check_resource",
}
"""Functions that take a Resource and a Site and raise InputError if the resource has invalid settings. Such
a function exists only for kinds of sites for which a resource can have settings."""
CHECKS: Mapping[str, str] = {
    "local": "gridmill.sites.local:check_site",
    "slurm": "gridmill.sites.slurm.commands:check_site",
    "ray": "gridmill.sites.ray.site:check_site",
    "cluster": "gridmill.sites.farm.site:check_site",
    "cloud": "gridmill.sites.cloud.settings:check_site",
    "batch": "gridmill.sites.batch.settings:check_site",
}
"""Functions that take a Site and raise InputError for errors that can be found before the site is
contacted."""
CLOUDS: Mapping[str, str] = {
    "aws": "gridmill.clouds.aws.cloud:make",
    "lambda": "gridmill.clouds.lambda_cloud.cloud:make",
    "gcp": "gridmill.clouds.gcp.cloud:make",
    "simulated": "gridmill.testing.cloud.provider:make",
}
"""The functions that open an account at a provider of machines, by the kind of the provider. Each of these
functions takes the settings (such as `region`) and a function that returns the value of a secret by its name,
and returns a CloudPort."""
IMAGE_CLOUDS = ("aws", "gcp")
"""The built-in kinds of providers that make images of machines (ports.cloud.ImageProvider)."""
CLOUD_SETTINGS: Mapping[str, str] = {
    "aws": "gridmill.clouds.aws.settings:known_settings",
    "lambda": "gridmill.clouds.lambda_cloud.settings:known_settings",
    "gcp": "gridmill.clouds.gcp.settings:known_settings",
    "simulated": "gridmill.testing.cloud.provider:known_settings",
}
"""The functions that return the names of the settings of a provider with their descriptions, by the kind of
the provider. Other settings of a site of this provider are refused. If a provider has no such function, all
settings are accepted."""
BATCHES: Mapping[str, str] = {
    "aws": "gridmill.clouds.aws.batch:make",
    "gcp": "gridmill.clouds.gcp.batch:make",
}
"""The functions that open a managed batch service, by its name. Each of these functions takes the settings of
the service, in which secrets are replaced by their values, and the place of the settings for errors. It
returns a BatchPort."""
STORES: Mapping[str, str] = {
    "memory": "gridmill.stores.memory:make",
    "sqlite": "gridmill.stores.sql:make",
    "postgresql": "gridmill.stores.sql:make",
}
"""The functions that open a record store, by the scheme of the URL in GRIDMILL_STORE."""
FAULTS: Mapping[str, str] = {"store": "gridmill.testing.faults:with_faults"}
"""The functions that inject faults for tests. Each of these functions takes the real adapter and the name of
a fault."""
LINKS: Mapping[str, str] = {
    "unix": "gridmill.transport.pod_side:make_unix",
    "tls": "gridmill.transport.tls:make",
    "spool": "gridmill.transport.spool:make",
}
"""The functions with which a pod opens its link to the control node, by the URL scheme of PodOrder.link."""

SERVICE_LINKS: Mapping[str, str] = {
    "none": "gridmill.sites.service_address:make_absent",
    "tcp": "gridmill.sites.service_address:make_link",
    "farm": "gridmill.sites.farm.service_link:make",
}
"""The functions that make the link of a service (ports.service_link.ServiceLink), by the name in
`Upstream.link`. Each of these functions takes an Upstream."""

SOURCES: Mapping[str, str] = {"files": "gridmill.storage.root:describe_source"}
"""Functions that list the files which a source names now. Each of these functions takes the declaration of
the source and the folder of the pipeline."""

READERS: Mapping[str, str] = {
    "sql": "gridmill.jobs.sink.sql:arrive",
    "stream": "gridmill.jobs.sink.redis_stream:arrive",
    "http": "gridmill.jobs.sink.http:arrive",
    "objects": "gridmill.jobs.sink.object_storage:arrive",
}
"""The functions with which a sink job reads sources that are not local files. Each of these functions takes
an `Asked` and returns `Arrivals` (see jobs/sink/source.py)."""

JOURNALS: Mapping[str, str] = {"folder": "gridmill.pod.journal:read_journal"}
"""The functions with which a site reads the undelivered events of a pod that has ended."""

DECLARATIONS: Mapping[str, str] = {"yaml": "gridmill.declarations:read_again"}
"""The functions that read the stored text of a pipeline again with other parameter values."""

REPORTS: Mapping[str, str] = {"html": "gridmill.report.render:render"}

LOOKS: Mapping[str, str] = {"process": "gridmill.storage.inspect_process:ask"}
"""The functions that read the content of versions to answer an ArtifactQuery."""

ARCHIVES: Mapping[str, str] = {
    "write": "gridmill.storage.archive:write_archive",
    "read": "gridmill.storage.archive:unpacked",
}
"""The functions that write complete projects to one file, and read projects from such a file."""

GRIDS: Mapping[str, str] = {"records": "gridmill.bootstrap.node:read"}
"""Functions with which a client reads a home that has no control node. Each of these functions takes
Settings, and returns an object with the attributes `grid` and `close`."""

VERSIONS: Mapping[str, str] = {
    "files": "gridmill.jobs.inspect_versions:files_of",
    "rows": "gridmill.jobs.stored_rows:read_rows",
    "batches": "gridmill.jobs.stored_rows:read_batches",
    "card": "gridmill.jobs.model_files:load_card",
    "graph facts": "gridmill.jobs.model_files:graph_facts",
    "described graph": "gridmill.jobs.training.onnx_graph:with_metadata",
    "as arrow": "gridmill.jobs.apply_model:as_arrow",
    "in form of": "gridmill.jobs.apply_model:in_form_of",
    "apply model": "gridmill.jobs.apply_model:apply_model",
    "open request": "gridmill.serving.open_request:open_request",
    "write answer": "gridmill.serving.answer_file:write_answer",
    "answer endings": "gridmill.serving.answer_file:answer_endings",
    "write csv": "gridmill.jobs.write_rows:write_csv",
    "write jsonl": "gridmill.jobs.write_rows:write_jsonl",
    "write parquet": "gridmill.jobs.write_rows:write_parquet",
}
"""The functions with which a program reads and writes a version. Each of these functions loads the libraries
for data or models that it needs."""

VAULTS: Mapping[str, str] = {"file": "gridmill.auth.vault:make"}
"""The functions that open the vault of a home, which encrypts secrets. Each of these functions takes the path
of the key file."""

TABLES: Mapping[str, Mapping[str, str]] = {
    "jobs": JOBS,
    "sites": SITES,
    "machines": MACHINES,
    "wishes": WISHES,
    "checks": CHECKS,
    "clouds": CLOUDS,
    "cloud_settings": CLOUD_SETTINGS,
    "batches": BATCHES,
    "stores": STORES,
    "faults": FAULTS,
    "links": LINKS,
    "service_links": SERVICE_LINKS,
    "sources": SOURCES,
    "readers": READERS,
    "journals": JOURNALS,
    "declarations": DECLARATIONS,
    "reports": REPORTS,
    "looks": LOOKS,
    "archives": ARCHIVES,
    "grids": GRIDS,
    "versions": VERSIONS,
    "vaults": VAULTS,
}


def find(table: str, name: str) -> Callable[..., Any]:
    """Returns the factory with this name from the table. Raises NotFoundError, which lists the known
    names."""
    target = TABLES[table].get(name)
    if target is None:
        metadata = import_module("importlib.metadata")  # slow to import, and not needed for built-in names
        group = {entry.name: entry.value for entry in metadata.entry_points(group=f"gridmill.{table}")}
        target = group.get(name)
        if target is None:
            names = ", ".join(sorted({*TABLES[table], *group}))
            raise NotFoundError(f"{name!r} is not one of the known {table}", hint=f"Use one of: {names}.")
    module, _, attribute = target.partition(":")
    factory: Callable[..., Any] = getattr(import_module(module), attribute)
    return factory
