"""Names of images, and declarations of jobs in containers."""

import pytest

from gridmill.domain.command import CommandSpec
from gridmill.domain.container import check_container, is_pinned, registry_of
from gridmill.domain.job import Job
from gridmill.domain.training import ModelKind, TrainingSpec
from gridmill.errors import InputError

DIGEST = f"@sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("ubuntu", ""),
        ("team/train:1.2", ""),
        ("localhost/train", "localhost"),
        ("127.0.0.1:5000/team/train:1", "127.0.0.1:5000"),
        (f"registry.example.com/a/b/c{DIGEST}", "registry.example.com"),
    ],
)
def test_the_registry_of_an_image(image: str, registry: str) -> None:
    check_container(image, "${secret:login}" if registry else None, "command")
    assert registry_of(image) == registry
    assert is_pinned(image) == image.endswith(DIGEST)


@pytest.mark.parametrize("image", ["", "--privileged", "a b", "UPPER", "x;y", "a@sha256:1", "http://x/y"])
def test_a_text_that_is_no_image_is_refused(image: str) -> None:
    with pytest.raises(InputError, match="is not the name of a container image"):
        check_container(image, None, "command")


def test_a_login_is_a_secret_of_a_container() -> None:
    with pytest.raises(InputError, match="not written into a pipeline file"):
        check_container("a", "me:password", "command")
    with pytest.raises(InputError, match="does not contain the registry for the login"):
        check_container("team/train:1.2", "${secret:login}", "command")
    with pytest.raises(InputError, match="needs `container`"):
        check_container(None, "${secret:login}", "command")


def test_a_job_in_a_container_declares_its_memory_and_names_its_secret() -> None:
    command = CommandSpec(run="true", container="localhost/a", registry_login="${secret:login}")
    with pytest.raises(InputError, match="needs `memory`"):
        Job(name="j", command=command).check()
    job = Job(name="j", command=command, memory_bytes=2**30)
    job.check()
    assert (job.secrets, job.container) == (("login",), "localhost/a")
    training = TrainingSpec(
        dataset="d",
        model=ModelKind.CUSTOM,
        script="a.py",
        container="localhost/b",
        registry_login="${secret:one}",
    )
    training.check()
    assert Job(name="j", training=training).secrets == ("one",)


def test_what_does_not_fit_a_container_is_refused() -> None:
    with pytest.raises(InputError, match="has the packages of its image"):
        CommandSpec(run="true", container="a", environment="requirements.txt").check()
    with pytest.raises(InputError, match="only a `script`"):
        TrainingSpec(dataset="d", model=ModelKind.CUSTOM, file="m.onnx", container="a").check()
    with pytest.raises(InputError, match="does not use 'container'"):
        TrainingSpec(dataset="d", model=ModelKind.GBDT, container="a").check()
