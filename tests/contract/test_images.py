"""Each provider that makes images passes the conformance suite for images."""

from collections.abc import Collection, Iterator

import pytest
from tests.contract.test_clouds_aws import Ec2Harness
from tests.contract.test_clouds_gcp import GceHarness

from gridmill.testing.clock import FakeClock
from gridmill.testing.cloud.ec2.simulation import simulated_ec2
from gridmill.testing.cloud.gce.simulation import simulated_gce
from gridmill.testing.image_suite import SECONDS, ImageHarness, ImageSuite


class Ec2Images(Ec2Harness, ImageHarness):
    def parts(self) -> Collection[str]:
        return [one for one in self.ec2.leftovers() if one.startswith(("ami-", "snap-"))]

    def fail_image(self) -> None:
        self.ec2.faults.failing_images = 1

    def lose_answer(self, method: str) -> None:
        self.ec2.faults.lose_answers({"create_image": "CreateImage", "keep_image": "DeleteTags"}[method])


class GceImages(GceHarness, ImageHarness):
    def parts(self) -> Collection[str]:
        return [one for one in self.gce.leftovers() if one.startswith("images/")]

    def fail_image(self) -> None:
        self.gce.faults.failing_images = 1

    def lose_answer(self, method: str) -> None:
        actions = {"create_image": "images.insert", "keep_image": "images.setLabels"}
        self.gce.faults.lose_answers(actions[method])


class TestEc2Images(ImageSuite):
    @pytest.fixture
    def harness(self) -> Iterator[ImageHarness]:
        with simulated_ec2(clock=FakeClock()) as ec2:
            ec2.faults.image_seconds = SECONDS
            harness = Ec2Images(ec2)
            yield harness
            harness.cloud.close()


class TestGceImages(ImageSuite):
    @pytest.fixture
    def harness(self) -> Iterator[ImageHarness]:
        with simulated_gce(clock=FakeClock()) as gce:
            gce.faults.image_seconds = SECONDS
            gce.faults.quotas["*"] = 10_000
            harness = GceImages(gce)
            yield harness
            harness.cloud.close()
