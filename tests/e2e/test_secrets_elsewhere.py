"""A secret reaches the process of its job at a Slurm site, a farm and a Ray site, and its value is in
no file, argument or record."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import PATIENCE_SECONDS, Place, eventually
from tests.e2e.test_farm import Controller
from tests.e2e.test_secrets import FORMS, SCREENS, VALUE, add, files_with_value, processes_with_value
from tests.kit.farms import open_folder
from tests.kit.ports import free_port
from tests.kit.ray import ENVIRONMENT, needs_ray, ray_cluster, remove_homes_on_nodes
from tests.kit.slurm import HOW_TO_GET_IT, is_installed, slurm_cluster

pytestmark = pytest.mark.e2e

PIPELINE = """\
pipeline: demo
at: SITE
jobs:
  show:
    command:
      run: |
        printf 'it is %.7s' "$TOKEN"
        tries=0
        until [ -e FOLDER/go ] || [ $tries = 200 ]; do sleep 0.05; tries=$((tries + 1)); done
        printf '%s\\n' "$${TOKEN#???????}"
        printf '%s' "$TOKEN" | base64
        [ "$(printf '%s' "$TOKEN" | wc -c)" = LENGTH ]
      env:
        TOKEN: {secret: token}
"""


def check(place: Place, site: str, go: Path, *folders: Path, **env: str) -> None:
    """Run a job with a secret at a site, and look for the value in processes, in files and on all screens.
    `folders` have the files of the site."""
    add(place, "token", VALUE)
    text = PIPELINE.replace("SITE", site).replace("FOLDER", str(go)).replace("LENGTH", str(len(VALUE)))
    run = place.start("run", place.write(text), **env)
    assert eventually(lambda: processes_with_value()["environ"], PATIENCE_SECONDS)
    found = processes_with_value()
    assert found["cmdline"] == set()
    assert found["environ"] <= {"GRIDMILL_ATTEMPT=demo-1.show.1"}
    assert [file for folder in (place.home, *folders) for file in files_with_value(folder)] == []
    (go / "go").touch()
    out, err = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, out + err
    shown = [out, err, *(place.gridmill(*words, **env).stdout for words in SCREENS)]
    assert "it is ***" in "".join(shown)
    assert not any(form.decode() in text for form in FORMS for text in shown)
    assert [file for folder in (place.home, *folders) for file in files_with_value(folder)] == []


@pytest.mark.skipif(not is_installed(), reason=HOW_TO_GET_IT)
def test_a_secret_at_a_slurm_site_is_in_no_file_of_the_spool(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slurm_cluster() as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        added = place.gridmill("add", "site", "lab", "--kind", "slurm", "--set", "time_limit=30m")
        assert added.returncode == 0, added.stderr
        check(place, "lab", place.folder, cluster.folder)
        place.gridmill("down", "--all")


def test_a_secret_at_a_farm_is_in_no_file_of_the_farm(place: Place) -> None:
    with open_folder() as folder, ExitStack() as ends:
        controller = Controller(folder / "farm", free_port())
        ends.callback(controller.kill)
        words = controller.up()["join"].split()
        added = place.gridmill(*words[1:])
        assert added.returncode == 0, added.stderr
        check(place, "gpu-farm", folder, folder)
        place.gridmill("down", "--all")


@pytest.mark.long
@needs_ray
def test_a_secret_at_a_ray_site_is_in_no_file_of_the_cluster(place: Place) -> None:
    with open_folder() as folder, ray_cluster(folder / "ray", cpus=2) as address:
        added = place.gridmill("add", "site", "lab", "--kind", "ray", "--address", address, **ENVIRONMENT)
        assert added.returncode == 0, added.stderr
        check(place, "lab", folder, folder, **ENVIRONMENT)
        place.gridmill("down", "--all", **ENVIRONMENT)
        remove_homes_on_nodes(place.home)
