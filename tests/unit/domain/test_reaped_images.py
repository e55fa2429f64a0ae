"""Images that were built are kept by the reaper, unless it is asked to delete them."""

from gridmill.domain.frozen import replace
from gridmill.domain.machine_image import ImageState, MachineImage
from gridmill.domain.reaping import ReapOrder, selected_images

IMAGE = MachineImage(
    id="i-1",
    name="base",
    provider="aws",
    region="r",
    state=ImageState.AVAILABLE,
    owner="g",
    build="lease-1",
    created=100.0,
)
ORDER = ReapOrder(kind="aws", end=True)


def test_a_finished_image_is_kept_without_the_option() -> None:
    assert selected_images([IMAGE], ORDER, 200.0) == ((), (IMAGE,))
    assert selected_images([IMAGE], replace(ORDER, with_images=True), 200.0) == ((IMAGE,), ())


def test_the_owner_the_lease_and_the_age_limit_the_images() -> None:
    order = replace(ORDER, with_images=True)
    assert selected_images([IMAGE], replace(order, owner="other"), 200.0) == ((), ())
    assert selected_images([IMAGE], replace(order, lease="lease-2"), 200.0) == ((), ())
    assert selected_images([IMAGE], replace(order, older_than_seconds=150.0), 200.0) == ((), (IMAGE,))
    assert (
        selected_images([replace(IMAGE, created=None)], replace(order, older_than_seconds=1.0), 200.0)[0]
        == ()
    )


def test_an_unfinished_image_is_a_leftover_and_no_image() -> None:
    assert selected_images([replace(IMAGE, lease="lease-1")], ORDER, 200.0) == ((), ())
