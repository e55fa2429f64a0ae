"""An image is built in steps that can be repeated."""

from dataclasses import dataclass, field

import pytest

from gridmill.domain.frozen import replace
from gridmill.domain.lease import Lease, LeaseState, RentalTerms
from gridmill.domain.machine import Machine, MachineState
from gridmill.domain.machine_image import ImageState, MachineImage
from gridmill.errors import RefusedError, UnavailableError
from gridmill.ports.cloud import ImageRequest
from gridmill.sites.cloud.image_build import ImageBuild, build_image

LEASE = Lease(
    id="lease-1",
    provider="aws",
    owner="g",
    resource="image base",
    deployment_id="",
    pod_id="image.lease-1",
    state=LeaseState.READY,
    terms=RentalTerms(),
    image_name="base",
)
MACHINE = Machine(
    id="m",
    provider="aws",
    region="north-1",
    zone="north-1a",
    instance_type="small",
    state=MachineState.RUNNING,
)


@dataclass
class Provider:
    """Images that are pending for some looks."""

    looks: int = 0
    final: ImageState = ImageState.AVAILABLE
    image: MachineImage | None = None
    kept: list[str] = field(default_factory=list)

    def images(self, owner: str = "") -> tuple[MachineImage, ...]:
        if self.image is None:
            return ()
        if self.looks == 0:
            self.image = replace(self.image, state=self.final)
        self.looks -= 1
        return (self.image,)

    def create_image(self, machine: Machine, request: ImageRequest) -> MachineImage:
        assert self.image is None
        self.image = MachineImage(
            id="i-1",
            name=request.name,
            provider="aws",
            region=machine.region,
            state=ImageState.PENDING,
            owner=request.owner,
            lease=request.lease,
            build=request.lease,
        )
        return self.image

    def keep_image(self, image: MachineImage) -> None:
        self.kept.append(image.id)

    def delete_image(self, image: MachineImage) -> None:
        raise AssertionError


@dataclass
class Rented:
    """Records what is done with the machine."""

    done: list[str] = field(default_factory=list)

    def wait_for_ssh(self) -> None:
        self.done.append("ssh")

    def clean(self) -> None:
        self.done.append("clean")


def build(provider: Provider, rented: Rented, wanted: int = 1000) -> ImageBuild:
    left = [wanted]
    now = [0.0]

    def is_wanted() -> bool:
        left[0] -= 1
        return left[0] >= 0

    def pause(seconds: float) -> None:
        now[0] += seconds

    return ImageBuild(
        lease=LEASE,
        machine=MACHINE,
        images=provider,
        rented=rented,  # type: ignore[arg-type]
        say=lambda text: None,
        is_wanted=is_wanted,
        monotonic=lambda: now[0],
        pause=pause,
    )


def test_the_machine_is_cleaned_and_the_image_kept_when_it_is_available() -> None:
    provider, rented = Provider(looks=3), Rented()
    assert build_image(build(provider, rented)).id == "i-1"
    assert (rented.done, provider.kept) == (["ssh", "clean"], ["i-1"])


def test_a_repeated_build_uses_the_image_that_exists() -> None:
    provider, rented = Provider(looks=10_000), Rented()
    with pytest.raises(UnavailableError, match="is not finished yet"):
        build_image(build(provider, rented))
    provider.looks = 0
    assert build_image(build(provider, rented)).state is ImageState.AVAILABLE
    assert (rented.done, provider.kept) == (["ssh", "clean"], ["i-1"])


def test_an_image_that_was_kept_before_a_crash_is_returned() -> None:
    provider, rented = Provider(), Rented()
    provider.create_image(MACHINE, ImageRequest(name="base", lease="lease-1", owner="g", version="1"))
    provider.image = replace(provider.image, lease="") if provider.image else None
    assert build_image(build(provider, rented)).id == "i-1"
    assert (rented.done, provider.kept) == ([], [])


def test_an_image_that_failed_is_not_kept() -> None:
    provider = Provider(final=ImageState.FAILED)
    with pytest.raises(RefusedError, match="could not make the image i-1"):
        build_image(build(provider, Rented()))
    assert provider.kept == []


def test_a_stopped_build_keeps_no_image() -> None:
    provider = Provider(looks=2)
    with pytest.raises(UnavailableError, match="was stopped"):
        build_image(build(provider, Rented(), wanted=2))
    assert provider.kept == []
