"""The runner in the container of a batch service."""

from pathlib import Path
from threading import Event

from tests.kit.batch_memory import Bucket

from gridmill.codec import from_builtins
from gridmill.domain.amounts import Amounts
from gridmill.domain.command import CommandSpec
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOrder, AttemptOutcome
from gridmill.domain.states import AttemptState
from gridmill.sites.batch.exchange import Exchange
from gridmill.sites.batch.manifest import BatchEnd, BatchManifest, end_object, manifest_object
from gridmill.sites.batch.runner import AttemptRunner
from gridmill.transport.server import PodLinkServer


def test_a_container_that_cannot_write_reports_the_file(tmp_path: Path) -> None:
    exchange, folder = Exchange(Bucket(f"file://{tmp_path / 'bucket'}")), tmp_path / "container"
    folder.mkdir()
    (folder / "pod").touch()  # so that the folder of the pod cannot be made
    given = Amounts(cpus=1.0, memory_bytes=1 << 30)
    order = AttemptOrder(
        attempt_id="a-1",
        token="t",
        run_id="p-1",
        pipeline="p",
        job=Job(name="one", command=CommandSpec(run="true")),
        given=given,
        root="",
        output_uri="out",
    )
    manifest = BatchManifest(
        order=order, type="command", capacity=given, inputs=(), checkpoints_seconds=60.0, poll_seconds=5.0
    )
    exchange.write(manifest_object("a-1"), manifest)
    links = PodLinkServer(lambda: None)
    assert AttemptRunner(exchange, "a-1", folder, links, "unix:none", Event()).run() == 1
    links.close()
    end = exchange.read(end_object("a-1"), BatchEnd)
    assert end is not None
    outcome = from_builtins(end.event.body["outcome"], AttemptOutcome)
    assert outcome.state is AttemptState.LOST
    assert f"{folder / 'pod'}: File exists" in outcome.message
