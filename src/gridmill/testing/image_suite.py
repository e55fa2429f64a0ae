"""The conformance suite for providers that make images of machines (`ports.cloud.ImageProvider`). Make a
subclass of `ImageSuite` in a test module and give it a fixture `harness`."""

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import replace

from gridmill.errors import ConflictError, UnavailableError
from gridmill.ports.cloud import ImageProvider, ImageRequest, ImageState, Machine, MachineImage
from gridmill.testing.cloud_suite import CloudHarness, raises

SECONDS = 60.0
"""The time that an image needs in the tests."""


class ImageHarness(CloudHarness):
    """The tested provider and its surroundings. New images are finished after `SECONDS` seconds."""

    @abstractmethod
    def parts(self) -> Collection[str]:
        """Returns everything that exists of images, with copies of disks, independent of `cloud`."""

    @abstractmethod
    def fail_image(self) -> None:
        """Makes the provider fail while it makes the next image."""

    @abstractmethod
    def lose_answer(self, method: str) -> None:
        """Makes the next call of `create_image` or `keep_image` have its effect, but get no answer."""

    @property
    def provider(self) -> ImageProvider:
        """Returns the tested provider."""
        assert isinstance(self.cloud, ImageProvider)
        return self.cloud

    def ordered(self, lease: str = "lease-1", name: str = "base.1") -> tuple[Machine, ImageRequest]:
        """Returns a running machine, and a request for its image."""
        self.launch(f"t-{lease}", lease=lease)
        self.wait(lambda: bool(self._running(lease)), "the machine runs")
        [machine] = self._running(lease)
        return machine, ImageRequest(name=name, lease=lease, owner="grid-a", version="1.2.3")

    def _running(self, lease: str) -> list[Machine]:
        machines = self.listed().values()
        return [one for one in machines if one.lease == lease and one.state.value == "running"]

    def finished(self, lease: str = "lease-1") -> MachineImage:
        """Waits until the image of a build is not pending, and returns it."""
        found: list[MachineImage] = []

        def is_finished() -> bool:
            for one in self.provider.images("grid-a"):
                if one.build == lease and one.state is not ImageState.PENDING:
                    found.append(one)
            return bool(found)

        self.wait(is_finished, "the image is finished")
        return found[0]


def _before(harness: ImageHarness) -> None:
    harness.ordered()


def _answer_lost(harness: ImageHarness) -> None:
    machine, request = harness.ordered()
    harness.lose_answer("create_image")
    with raises(UnavailableError):
        harness.provider.create_image(machine, request)


def _pending(harness: ImageHarness) -> None:
    harness.provider.create_image(*harness.ordered())


def _machine_ended(harness: ImageHarness) -> None:
    machine, request = harness.ordered()
    harness.provider.create_image(machine, request)
    harness.cloud.terminate(machine)


def _failed(harness: ImageHarness) -> None:
    harness.fail_image()
    harness.provider.create_image(*harness.ordered())
    assert harness.finished().state is ImageState.FAILED


def _finished(harness: ImageHarness) -> None:
    harness.provider.create_image(*harness.ordered())
    harness.finished()


def _check_end(harness: ImageHarness) -> None:
    """Checks that the lists of the provider show everything that a build has left, and that all of it can be
    deleted."""
    harness.reopen()
    harness.clean_up()
    assert not harness.parts()
    assert not harness.alive()
    assert not harness.cloud.leftovers("grid-a")


class ImageSuite:
    """The tests that every provider that makes images must pass."""

    def test_an_image_has_the_tags_of_its_request(self, harness: ImageHarness) -> None:
        """An image has its name, grid, version and build, and is a leftover of the build until it is kept."""
        machine, request = harness.ordered()
        made = harness.provider.create_image(machine, request)
        assert made.state is ImageState.PENDING
        [listed] = harness.provider.images("grid-a")
        assert (listed.id, listed.name, listed.owner, listed.version) == (
            made.id,
            "base.1",
            "grid-a",
            "1.2.3",
        )
        assert (listed.lease, listed.build, listed.state) == ("lease-1", "lease-1", ImageState.PENDING)
        found = {one.kind: one.lease for one in harness.cloud.leftovers("grid-a")}
        assert found["image"] == "lease-1"
        assert listed.is_in(machine.region)
        harness.clean_up()

    def test_a_repeated_request_returns_the_same_image(self, harness: ImageHarness) -> None:
        """A request can be repeated: before and after the image is finished, and when it is kept."""
        machine, request = harness.ordered()
        first = harness.provider.create_image(machine, request).id
        assert harness.provider.create_image(machine, request).id == first
        harness.provider.keep_image(harness.finished())
        harness.reopen()
        assert harness.provider.create_image(machine, request).id == first
        harness.provider.delete_image(harness.finished())
        harness.clean_up()
        assert not harness.parts()

    def test_a_lost_answer_makes_no_second_image(self, harness: ImageHarness) -> None:
        """The image of a request whose answer was lost is found."""
        machine, request = harness.ordered()
        harness.lose_answer("create_image")
        with raises(UnavailableError):
            harness.provider.create_image(machine, request)
        made = harness.provider.create_image(machine, request)
        assert [one.id for one in harness.provider.images("grid-a")] == [made.id]
        harness.clean_up()
        assert not harness.parts()

    def test_a_kept_image_is_no_leftover(self, harness: ImageHarness) -> None:
        """A kept image stays when its machine and all leftovers are deleted, and machines boot from it."""
        harness.provider.create_image(*harness.ordered())
        image = harness.finished()
        assert image.state is ImageState.AVAILABLE
        harness.lose_answer("keep_image")
        with raises(UnavailableError):
            harness.provider.keep_image(image)
        harness.provider.keep_image(image)
        harness.provider.keep_image(image)
        harness.clean_up()
        [kept] = harness.provider.images("grid-a")
        assert (kept.id, kept.lease, kept.build) == (image.id, "", "lease-1")
        assert harness.parts()
        assert not harness.provider.images("grid-b")
        request = replace(harness.request("t-2", lease="lease-2"), image=kept.id, user_data="#!/bin/sh\n:\n")
        harness.seen(harness.cloud.launch(request))
        harness.provider.delete_image(kept)
        harness.provider.delete_image(kept)
        assert not harness.parts()
        harness.clean_up()

    def test_a_name_is_used_once(self, harness: ImageHarness) -> None:
        """Another build of the same grid cannot use the name of an image."""
        harness.provider.create_image(*harness.ordered())
        with raises(ConflictError) as errors:
            harness.provider.create_image(*harness.ordered("lease-2"))
        assert "is in use by the image" in errors[0].message
        assert {one.build for one in harness.provider.images("grid-a")} == {"lease-1"}
        harness.clean_up()

    def test_a_build_that_dies_before_the_request_leaves_nothing(self, harness: ImageHarness) -> None:
        """The control node dies before the image is requested."""
        _before(harness)
        _check_end(harness)

    def test_a_build_that_dies_during_the_request_leaves_nothing(self, harness: ImageHarness) -> None:
        """The control node dies while the image is requested."""
        _answer_lost(harness)
        _check_end(harness)

    def test_a_build_that_dies_while_the_image_is_made_leaves_nothing(self, harness: ImageHarness) -> None:
        """The control node dies while the provider makes the image."""
        _pending(harness)
        _check_end(harness)

    def test_a_build_that_dies_after_its_machine_leaves_nothing(self, harness: ImageHarness) -> None:
        """The control node dies after the machine of a pending image was ended."""
        _machine_ended(harness)
        _check_end(harness)

    def test_a_build_that_dies_after_its_image_has_failed_leaves_nothing(self, harness: ImageHarness) -> None:
        """The control node dies after the image has failed."""
        _failed(harness)
        _check_end(harness)

    def test_a_build_that_dies_before_it_keeps_the_image_leaves_nothing(self, harness: ImageHarness) -> None:
        """The control node dies before the finished image is kept."""
        _finished(harness)
        _check_end(harness)
