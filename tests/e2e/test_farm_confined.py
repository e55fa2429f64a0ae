"""Jobs of all kinds at a farm that confines them: they run as they run at home, and nothing is left."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_farm import Controller, opened, until
from tests.e2e.test_farm_attacks import groups_of
from tests.kit.farms import open_folder
from tests.kit.ports import free_port

pytestmark = pytest.mark.e2e
PIPELINE = """
pipeline: NAME
resources:
  there-dataset: {type: dataset, site: SITE, cpus: 1, memory: 1GiB}
  there-training: {type: training, site: SITE, cpus: 1, memory: 1GiB}
  there-prediction: {type: prediction, site: SITE, cpus: 1, memory: 1GiB}
  there-command: {type: command, site: SITE, cpus: 1, memory: 256MiB}
jobs:
  rows: {sink: {source: rows.csv}}
  points:
    resource: there-dataset
    dataset:
      tables: [rows]
      sql: "select time, key, value, lag(value) over (order by time) as before from rows order by time"
      time: time
      label: {column: value}
      split: {validation: 0.2, test: 0.2}
  model:
    resource: there-training
    training: {dataset: points, model: linear}
  told:
    resource: there-prediction
    prediction: {dataset: points, models: [model]}
  counts:
    resource: there-command
    needs: told
    command: "python count.py $GRIDMILL_INPUT_TOLD > $GRIDMILL_OUTPUT/count"
"""
COUNTS = """
import pathlib, sys, tempfile
tempfile.mkdtemp()
print(len(list(pathlib.Path(sys.argv[1]).rglob("*"))))
"""


@pytest.mark.long
def test_jobs_of_all_kinds_run_confined_as_they_run_at_home(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    folder.mkdir()
    lines = (f"2026-01-{1 + i // 24:02d}T{i % 24:02d}:00:00,{i % 3},{i * i % 17}\n" for i in range(600))
    (folder / "rows.csv").write_text("time,key,value\n" + "".join(lines))
    (folder / "count.py").write_text(COUNTS)
    with open_folder() as made:
        keep = tmp_path / "keep"
        keep.mkdir()
        controller = Controller(made / "h", free_port())
        controller.within = ("env", "GRIDMILL_CPUS=2", "GRIDMILL_MEMORY=6GiB", *opened(keep))
        told = controller.up()

        def gridmill(*words: str) -> str:
            line = [sys.executable, "-m", "gridmill", "--home", str(home), *words]
            ran = subprocess.run(line, capture_output=True, text=True, check=False, cwd=folder)
            assert ran.returncode == 0, (words, ran.stdout[-2000:], ran.stderr[-2000:])
            return ran.stdout

        try:
            join = told["join"].rpartition("--join ")[2]
            gridmill("add", "cluster", "far", "--controller", told["address"], "--join", join)
            metrics = []
            for name, site in (("there", "far"), ("here", "local")):
                text = PIPELINE.replace("NAME", name).replace("SITE", site)
                (folder / f"{name}.yaml").write_text(text)
                gridmill("run", f"{name}.yaml")
                metrics.append(json.loads(gridmill("show", "version", f"{name}/model", "--json")))
            assert metrics[0]["output"]["metrics"] == metrics[1]["output"]["metrics"]
            [user] = [tenant["user"] for tenant in controller.farm("tenants")]
            assert user
        finally:
            controller.farm("revoke", controller.farm("tenants")[0]["name"])
            until(lambda: controller.farm("tenants") == [])
            controller.kill()
        assert list((made / "h/farm/tenants").iterdir()) == []
        assert groups_of(user) == []
