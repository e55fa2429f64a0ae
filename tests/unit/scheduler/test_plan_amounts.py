"""What `plan` says of CPUs, and of jobs that ask for more than a site has."""

import pytest

from gridmill.cli.format import amounts
from gridmill.declarations import parse_declarations
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.site import Node, Site, SiteKind
from gridmill.scheduler.dry_run import dry_run
from gridmill.scheduler.snapshot import Snapshot

TEXT = """\
pipeline: p
resources:
  big: {type: command, gpus: 4}
jobs:
  one:
    resource: big
    command: "true"
  two:
    memory: 4000GiB
    command: "true"
  three: {cpus: 2, command: "true"}
  four: {command: "true"}
"""


@pytest.mark.parametrize(
    ("given", "most", "text"),
    [
        (1.0, None, "1 CPU, 1 GiB"),
        (1.0, 1.0, "1 CPU, 1 GiB"),
        (1.0, 8.0, "1-8 CPUs, 1 GiB"),
        (2.0, None, "2 CPUs, 1 GiB"),
    ],
)
def test_cpus_are_a_range_where_a_job_may_get_more(given: float, most: float | None, text: str) -> None:
    assert amounts(Amounts(cpus=given, memory_bytes=GIB), most) == text


def test_what_asks_for_too_much_has_file_and_line() -> None:
    (pipeline,) = parse_declarations(TEXT, file="f.yaml")
    assert isinstance(pipeline, Pipeline)
    capacity = Amounts(cpus=8, memory_bytes=16 * GIB)
    local = Site(name="local", kind=SiteKind.LOCAL, nodes=(Node(name="here", capacity=capacity),))
    made = {job.job: job for job in dry_run(pipeline, Snapshot([local]), {}, frozenset()).jobs}
    assert made["one"].problem.startswith("f.yaml:6: jobs.one.resource: resource 'big' asks for 4 GPUs")
    assert made["two"].problem.startswith("f.yaml:9: jobs.two.memory: needs 3.9 TiB")
    assert (made["three"].problem, made["three"].most_cpus) == ("", None)
    assert (made["four"].problem, made["four"].most_cpus) == ("", 8.0)
