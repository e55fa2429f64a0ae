"""A farm in another place: jobs run there as if it were here. Home is host alpha, the farm is host beta."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridmill.testing.hosts import Host, why_no_hosts
from gridmill.transfer.bucket import BucketClient
from tests.kit.farmland import FARM, STORAGE, Farmland
from tests.kit.little_bucket import moment
from tests.kit.machines import attempts, messages, state, two_hosts
from tests.kit.objectstore import HOW_TO_GET_IT, make_bucket, object_store
from tests.kit.objectstore import KEYS as TEST_KEYS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]
OPTIONS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
KEYS = TEST_KEYS | {"AWS_SECRET_ACCESS_KEY": "T0PSECRET"}
PIPELINE = """
pipeline: NAME
resources:
  far-training: {type: training, site: SITE, cpus: 1, memory: 1GiB}
  far-prediction: {type: prediction, site: SITE, cpus: 1, memory: 1GiB}
jobs:
  rows: {sink: {source: rows.csv}}
  points:
    dataset:
      tables: [rows]
      sql: "select time, key, value, lag(value) over (order by time) as before from rows order by time"
      time: time
      label: {column: value}
      split: {validation: 0.2, test: 0.2}
  model:
    resource: far-training
    training: {dataset: points, model: linear}
  told:
    resource: far-prediction
    prediction: {dataset: points, models: [model]}
"""


class Owner(Farmland):
    """Whose control node has a bucket's credentials, which nobody else has."""

    def control(self, *words: str, **settings: str) -> None:
        super().control(*words, **KEYS, **settings)


@pytest.fixture(scope="module")
def whole() -> Iterator[Farmland]:
    with two_hosts() as (net, shared):
        yield Owner(net, shared)


@pytest.fixture
def land(whole: Farmland) -> Iterator[Farmland]:
    """After each test nothing runs at the farm."""
    yield whole
    whole.clear()


def rows(land: Farmland, count: int = 600) -> None:
    lines = (f"2026-01-{1 + i // 24:02d}T{i % 24:02d}:00:00,{i % 3},{i * i % 17}\n" for i in range(count))
    (land.shared / "rows.csv").write_text("time,key,value\n" + "".join(lines))


def artifact(view: dict[str, Any], name: str) -> dict[str, Any]:
    one = next(one for one in view["jobs"] if one["job"]["job"]["name"] == name)
    found: dict[str, Any] = one["artifacts"][0]["output"]
    return found


def test_a_model_trained_there_is_the_one_trained_here(land: Farmland) -> None:
    rows(land)
    views = {
        site: land.ended(land.run(PIPELINE.replace("SITE", site).replace("NAME", name), name), name)
        for site, name in (("far", "there"), ("local", "here"))
    }
    assert [messages(view) for view in views.values()] == [[""] * 4] * 2
    assert [state(view) for view in views.values()] == ["succeeded"] * 2
    assert attempts(views["far"]) == [1] * 4
    far = {one["job"]["job"]["name"]: one["attempts"][0]["transfers"] for one in views["far"]["jobs"]}
    assert far["rows"] is None
    assert far["model"]["upload"]["transferred_bytes"] > 0
    assert far["model"]["download"]["transferred_bytes"] > 0
    told = far["told"]["upload"]  # what was made there, and read there before, was there
    assert told["reused_bytes"] > 0
    assert told["transferred_bytes"] == 0
    planned = json.loads(land.gridmill("plan", str(land.shared / "there.yaml"), "--json"))["jobs"]
    travels = {one["job"]: one["transfer"] for one in planned}
    assert travels["rows"] is None
    assert travels["told"]["upload_bytes"] == 0
    assert travels["told"]["reused_bytes"] > 0
    there, here = (artifact(view, "model") for view in views.values())
    assert there["metrics"] == here["metrics"]
    shown = [land.gridmill("preview", f"{name}/told") for name in ("there", "here")]
    assert shown[0].replace("there", "here") == shown[1]
    verified = json.loads(land.gridmill("verify", "--json"))
    assert all(one["files"] for one in verified)
    assert not any(one["file_problems"] or one["problem"] for one in verified)


def test_a_command_there_reads_exactly_its_version_of_a_sink(land: Farmland) -> None:
    text = """
pipeline: reads
resources:
  far: {type: command, site: far, cpus: 1, memory: 512MiB}
jobs:
  rows: {sink: {source: rows.csv}}
  count:
    resource: far
    needs: rows
    command: |
      python -c "
      import os, pyarrow.parquet as pq
      print('ROWS', sorted(pq.read_table(os.environ['GRIDMILL_INPUT_ROWS'])['b'].to_pylist()))"
"""
    for edit in range(2):
        (land.shared / "rows.csv").write_text(f"a,b\n1,{edit}\n2,{edit}\n")
        view = land.ended(land.run(text, "reads"), "reads")
        assert state(view) == "succeeded", messages(view)
        assert f"ROWS [{edit}, {edit}]" in land.gridmill("logs", f"reads-{edit + 1}", "count")


CODE = """
pipeline: code
resources:
  far: {type: command, site: far, cpus: 1, memory: 256MiB}
jobs:
  one:
    resource: far
    command: "sh tool.sh; cp made.txt $GRIDMILL_OUTPUT/"
  two:
    resource: far
    needs: [one]
    command: "cat $GRIDMILL_INPUT_ONE/made.txt; echo wrong >&2; exit 3"
"""


SHARED = """
pipeline: shared
resources:
  far: {type: command, site: far, cpus: 1, memory: 256MiB}
  further: {type: command, site: far, cpus: 1, memory: 256MiB}
jobs:
  make:
    command: |
      head -c 16000000 /dev/urandom > $GRIDMILL_OUTPUT/large
      for i in $(seq 500); do echo $i > $GRIDMILL_OUTPUT/$i; done
  first: {resource: far, needs: make, command: "ls $GRIDMILL_INPUT_MAKE | wc -l"}
  second: {resource: further, needs: make, command: "ls $GRIDMILL_INPUT_MAKE | wc -l"}
"""


def test_jobs_that_start_together_and_need_the_same_files_have_them_sent_once(land: Farmland) -> None:
    land.configure("rate=4MiB")  # the first is still being served when the others start
    view = land.ended(land.run(SHARED, "shared"), "shared")
    land.configure("rate=")
    assert state(view) == "succeeded", messages(view)
    made = 16_000_000 + sum(len(f"{number}\n") for number in range(1, 501))
    uploads = [one["attempts"][0]["transfers"]["upload"] for one in view["jobs"][1:]]
    assert len(uploads) == 2
    assert sum(one["transferred_bytes"] for one in uploads) <= 1.05 * made
    assert all(one["transferred_bytes"] + one["reused_bytes"] >= made for one in uploads)


def left_there(land: Farmland) -> list[str]:
    """What of jobs is still at the farm: files, folders that these were in, and code."""
    root = land.root_there()
    look = f"find {root} -mindepth 1; find {root}/../home -name tool.sh"
    return land.on_farm("bash", "-c", look).split()


def test_code_goes_there_and_files_and_logs_and_reasons_come_home(land: Farmland) -> None:
    (land.shared / "tool.sh").write_text("for i in 1 2 3; do echo line $i; done; hostname > made.txt\n")
    view = land.ended(land.run(CODE, "code"), "code")
    assert state(view) == "failed"
    assert "3" in messages(view)[1]
    logs = land.gridmill("logs", "code-1")
    assert all(f"line {i}" in logs for i in (1, 2, 3))
    assert "wrong" in logs
    assert "beta" in logs
    home = land.gridmill("preview", "code/one")
    assert "made.txt" in home
    assert any(path.endswith("tool.sh") for path in left_there(land)), "code was unpacked"
    land.clear()
    land.wait(lambda: left_there(land) == [], "nothing is left at the farm")


def test_a_command_that_makes_no_files_is_run_again(land: Farmland) -> None:
    text = """
pipeline: again
resources:
  far: {type: command, site: far, cpus: 1, memory: 256MiB}
jobs:
  one: {resource: far, cache: false, command: "true"}
"""
    views = [land.ended(land.run(text, "again"), "again") for _ in range(2)]
    assert [(state(view), attempts(view)) for view in views] == [("succeeded", [1])] * 2, messages(views[1])


def test_a_gang_there_meets_and_what_its_first_rank_made_comes_home(land: Farmland) -> None:
    text = """
pipeline: pair
resources:
  far: {type: command, site: far, cpus: 1, memory: 256MiB, workers: 2}
jobs:
  pair:
    resource: far
    command:
      workers: 2
      run: "echo rank $RANK of $WORLD_SIZE; [ $RANK = 1 ] || { sleep 2; echo made > $GRIDMILL_OUTPUT/file; }"
"""
    view = land.ended(land.run(text, "pair"), "pair")
    assert (state(view), attempts(view)) == ("succeeded", [1]), messages(view)
    assert "file" in land.gridmill("preview", "pair/pair")
    logs = land.gridmill("logs", "pair-1")
    assert all(f"rank {rank} of 2" in logs for rank in (0, 1))


GOES_ON = """
pipeline: goes
resources:
  far: {type: command, site: far, cpus: 1, memory: 256MiB, keep: 0s}
jobs:
  on:
    resource: far
    resumable: true
    command: "cat $GRIDMILL_CHECKPOINTS/at && exit; echo half-way > $GRIDMILL_CHECKPOINTS/at; sleep 100000"
"""


def test_a_job_there_goes_on_from_what_came_home_while_it_ran(land: Farmland) -> None:
    land.configure("checkpoints=1s")
    run = land.run(GOES_ON, "goes")
    look = f"cat {STORAGE}/checkpoints/goes/on/*/at || true"
    land.wait(lambda: "half-way" in land.alpha.run("bash", "-c", look), "its checkpoint is at home")
    pods = f"{FARM}/farm/tenants/*/home/pods"
    land.on_farm("bash", "-c", f"kill -KILL $(cut -d' ' -f1 $(ls -t {pods}/*/pid | head -1))")
    view = land.ended(run, "goes")
    assert (state(view), attempts(view)) == ("succeeded", [2]), messages(view)
    assert "half-way" in land.gridmill("logs", "goes-1")
    land.configure("checkpoints=")
    land.clear()
    land.wait(lambda: left_there(land) == [], "nothing is left at the farm")


@pytest.mark.long
def test_what_could_not_be_sent_home_in_time_is_told_as_lost(land: Farmland) -> None:
    land.configure("lease=20s")
    farm_again(land, "--retain", "1s")
    run = land.waiting("lost")
    land.crash(run.name)
    run.process.wait(200)
    run.go()
    land.wait(lambda: "results_lost" in land.said("farm"), "the farm says that it is lost")
    land.wait(lambda: left_there(land) == [], "the farm has removed what it made")
    land.control()
    lost = (
        "site far: the results of lost-1.long.1 on the farm were not downloaded within 1.0 s and are deleted"
    )
    land.wait(lambda: lost in land.gridmill("status"), "home tells it")
    land.wait(lambda: '"succeeded"' in land.gridmill("status", "lost-1", "--json"), "it was done again")
    view = json.loads(land.gridmill("status", "lost-1", "--json"))
    assert attempts(view) == [2]
    assert view["jobs"][0]["attempts"][0]["message"] == lost.partition(": ")[2]
    land.configure("lease=")
    farm_again(land)


def farm_again(land: Farmland, *words: str) -> None:
    land.kill(land.beta, "farm")
    land.farm_up(*words)
    land.wait(lambda: "farm running" in land.said("farm"), "the farm is up again")


def test_a_job_there_is_stopped(land: Farmland) -> None:
    run = land.waiting("stopped")
    land.gridmill("stop", "stopped-1")
    assert state(land.ended(run.process, run.name)) == "stopped"


@pytest.mark.long
def test_a_link_that_is_cut_for_a_while_costs_nothing(land: Farmland) -> None:
    run = land.waiting("cut")
    land.beta.connect(False)
    run.go()
    land.wait(lambda: "does not answer" in land.said("up"), "home sees it")
    land.beta.connect(True)
    land.ended_well(run, "beta")


@pytest.mark.long
def test_a_controller_that_is_killed_costs_nothing(land: Farmland) -> None:
    run = land.waiting("killed")
    land.kill(land.beta, "farm")
    land.farm_up()
    land.ended_well(run, "beta")


def test_a_control_node_that_is_killed_costs_nothing(land: Farmland) -> None:
    run = land.waiting("home")
    land.crash(run.name)
    run.process.wait(200)
    land.control()
    run.go()
    land.wait(lambda: '"succeeded"' in land.gridmill("status", "home-1", "--json"), "it has succeeded")
    assert run.hosts == ["beta"]


@pytest.mark.long
def test_a_farm_that_is_cut_off_for_ever_ends_what_the_lease_was_for(land: Farmland) -> None:
    land.gridmill("configure", "site", "far", "--set", "lease=20s")
    run = land.waiting("lease")
    land.beta.connect(False)
    try:
        pods = "pgrep -af '[g]ridmill.pod|[u]ntil ' || true"
        land.wait(lambda: not land.on_farm("bash", "-c", pods).strip(), "the farm has ended it")
        land.wait(lambda: "was lost" in land.said(run.name), "home has given it up")
    finally:
        land.beta.connect(True)
    land.gridmill("configure", "site", "far", "--set", "lease=")
    run.go()
    view = land.ended(run.process, run.name)
    assert (state(view), attempts(view)) == ("succeeded", [2]), messages(view)
    assert "twice" not in run.hosts


FOUND = """
secret='T0PSECRE[T]|X-Amz-Signatur[e]'
exec 2> /dev/null
for at in /proc/[0-9]*; do tr '\\0' '\\n' < $at/cmdline; tr '\\0' '\\n' < $at/environ; done | grep -E $secret
cd /tmp
ls -A | grep -vxF "$0" | tr '\\n' '\\0' | xargs -0 -r grep -rlE $secret --exclude-dir=shared
grep -rlE $secret /root/farm /root/grid || true
"""


def found(host: Host) -> str:
    """Where it is on that host, aside of this test, where the repository is below /tmp."""
    names = {Path(one).parts[2] for one in (sys.prefix, *sys.path) if one.startswith("/tmp/")}
    return host.run("bash", "-c", FOUND, "\n".join(names) or "/")


COPIES = """
pipeline: copies
resources:
  far: {type: command, site: far, cpus: 1, memory: 256MiB, staging: export}
jobs:
  one: {resource: far, command: "cp tool.sh $GRIDMILL_OUTPUT/"}
"""


@pytest.mark.long
def test_data_goes_by_a_bucket_whose_credentials_stay_at_home(land: Farmland) -> None:
    rows(land, 500)
    with object_store(land.net.gateway) as endpoint:
        if endpoint is None:
            pytest.skip(HOW_TO_GET_IT)
        make_bucket(endpoint, "exchange")
        said = ("--export", "s3://exchange/e", "--shared", "s3://exchange/s", "--endpoint", endpoint)
        land.gridmill("configure", "site", "far", *said)
        text = PIPELINE.replace("SITE", "far, staging: shared").replace("NAME", "shared")
        views = [land.ended(land.run(text, "shared"), "shared")]
        (land.shared / "tool.sh").write_text("echo exported\n")
        views.append(land.ended(land.run(COPIES, "copies"), "copies"))
        assert [state(view) for view in views] == ["succeeded"] * 2, [messages(view) for view in views]
        assert "tool.sh" in land.gridmill("preview", "copies/one")
        there = BucketClient("s3://exchange", {"endpoint": endpoint, **OPTIONS})
        assert {tuple(name.split("/")[:2]) for name in there.older(moment(-3600))} == {("s", "kept")}
        assert "staging" in land.gridmill("configure", "site", "far", "--export", "", check=False)
        land.gridmill("configure", "site", "far", "--export", "s3://nowhere")
        (land.shared / "tool.sh").write_text("echo never\n")
        run = land.run(COPIES, "copies")  # a bucket that is not there is waited for
        land.wait(
            lambda: "thisbucketdoesnotexist" in "".join(land.gridmill("status").split()), "the bucket is told"
        )
        land.gridmill("stop", "copies-2")
        run.wait(300)
    assert "T0PSECRET" in found(land.alpha)  # the control node has it, for one
    assert found(land.beta) == ""
    assert "Signature" not in land.said("farm") + land.said("up")
    words = "cat /proc/[0-9]*/cmdline; grep -rh T0P /root/grid || true"
    assert "T0PSECRET" not in land.alpha.run("bash", "-c", words)
