"""Images of machines from the command line, on a grid in memory."""

from pathlib import Path

import pytest
from tests.unit.cli.test_cli import Cli

from gridmill.control.usecases.leases import view_of
from gridmill.domain.frozen import replace
from gridmill.domain.lease import LeaseState
from gridmill.domain.machine_image import ImageState, ImageView
from gridmill.testing.store_samples import a_lease

IMAGE = ImageView(
    site="aws",
    name="base",
    id="ami-1",
    region="us-east-1",
    state=ImageState.AVAILABLE,
    version="0.0.1",
    is_current=False,
    disk_bytes=64 * 2**30,
    created=1e9,
    setting="image=ami-1",
)


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capfd)


def build(cli: Cli, state: LeaseState, image: str = "", reason: str = "") -> None:
    lease = replace(a_lease(), state=state, image_name="base", image_id=image, reason=reason)
    cli.fake.kept_leases[lease.id] = view_of(lease, 1e9)


def test_a_finished_build_prints_the_image_and_the_setting_that_uses_it(cli: Cli) -> None:
    build(cli, LeaseState.RELEASING, "ami-1")
    assert cli("build", "image", "base", "--at", "aws", "--region", "us-east-1") == 0
    assert cli.out == ("image base: ami-1\nto use it: gridmill alter resource RESOURCE --set image=ami-1\n")


def test_a_failed_build_ends_with_its_reason(cli: Cli) -> None:
    build(cli, LeaseState.RELEASING, reason="the image base could not be built: no rights")
    assert cli("build", "image", "base", "--at", "aws") != 0
    assert "the image base could not be built: no rights" in cli.err


def test_a_build_need_not_be_awaited(cli: Cli) -> None:
    build(cli, LeaseState.BOOTING)
    assert cli("build", "image", "base", "--at", "aws", "--no-wait") == 0
    assert "image base is built at aws on the machine of lease-1" in cli.out


def test_images_are_listed_shown_and_removed(cli: Cli) -> None:
    assert cli("list", "images") == 0
    assert "there are no images" in cli.err
    cli.fake.kept_images = (IMAGE,)
    assert cli("list", "images") == 0
    assert "base" in cli.out
    assert "0.0.1 (another version)" in cli.out
    assert cli.json("list", "images")[0]["id"] == "ami-1"
    assert cli("show", "image", "base") == 0
    assert "image=ami-1" in cli.out
    assert cli("remove", "image", "base") == 0
    assert cli.fake.kept_images == ()
    assert cli("show", "image", "base") != 0
