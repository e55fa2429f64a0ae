"""An embedded control node lets its pods go as soon as the last job has ended, and is still read from."""

from pathlib import Path

import pytest

from gridmill.domain.states import RunState
from gridmill.sdk.client import connect
from gridmill.sites.processes import _is_locked
from tests.e2e.conftest import eventually

PIPELINE = 'pipeline: one\njobs: {work: {command: "true"}}\n'


@pytest.mark.e2e
def test_pods_end_while_the_client_still_reads(tmp_path: Path):
    (tmp_path / "one.yaml").write_text(PIPELINE)
    with connect(tmp_path / "home") as client:
        view = client.run(tmp_path / "one.yaml")
        (pod,) = (tmp_path / "home" / "pods").iterdir()
        assert view.run.state == RunState.SUCCEEDED
        assert _is_locked(pod)
        client.release()
        assert eventually(lambda: not _is_locked(pod))
        assert client.status(view.run.id).run.state == RunState.SUCCEEDED
        again = client.run(tmp_path / "one.yaml", force=True)  # and brings up others when there is more
        assert again.run.state == RunState.SUCCEEDED
