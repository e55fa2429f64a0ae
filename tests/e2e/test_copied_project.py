"""A copied, moved or linked project, with the real command: whose the pipeline's name is."""

import shutil

import pytest

from tests.e2e.conftest import Place

pytestmark = pytest.mark.e2e

PIPELINE = "pipeline: prices\njobs:\n  rows: {sink: {source: data.csv}}\n"


def test_a_copied_project_does_not_touch_the_table_of_the_first(place: Place):
    file = place.write(PIPELINE)
    (file.parent / "data.csv").write_text("x\n1\n")
    assert place.gridmill("run", file).returncode == 0
    copy = place.folder / "copy"
    shutil.copytree(file.parent, copy)
    (copy / "data.csv").write_text("x\n2\n3\n")
    for verb in (("run",), ("apply", "-f"), ("plan",)):
        refused = place.gridmill(*verb, copy / file.name)
        assert refused.returncode == 5
        said = " ".join((refused.stdout if verb == ("plan",) else refused.stderr).split())
        assert f"belongs to the folder {file.parent}; this pipeline file is in {copy}" in said
        assert "--adopt" in said
    assert [one["number"] for one in place.json("list", "artifacts")] == [1]

    link = place.folder / "link"
    link.symlink_to(file.parent)
    assert place.gridmill("run", link / file.name).returncode == 0
    moved = file.parent.rename(place.folder / "moved")
    assert place.gridmill("run", moved / file.name).returncode == 0
    assert place.gridmill("run", copy / file.name).returncode == 5
    assert place.gridmill("run", copy / file.name, "--adopt").returncode == 0
    assert place.gridmill("run", moved / file.name).returncode == 5
