"""This module has the rules for containers in which jobs run: the names of images, and the runtimes."""

import re
from enum import StrEnum

from gridmill.domain.frozen import dataclass
from gridmill.domain.secret import SECRET_REFERENCE
from gridmill.errors import InputError

_IMAGE = re.compile(
    r"(?:(?P<host>[A-Za-z0-9.-]*[.:][A-Za-z0-9.:-]*|localhost)/)?"
    r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?"
)
LABEL = "gridmill.attempt"
"""The label of a container, whose value is the id of its attempt."""


class ContainerRuntime(StrEnum):
    """The programs that run containers. The first one that a machine has is used."""

    PODMAN = "podman"
    DOCKER = "docker"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """The container of an attempt: its runtime (the path of the program), its name, its image as declared,
    and the digest of the image that runs (`sha256:…`)."""

    runtime: str
    name: str
    image: str
    digest: str = ""


def check_container(image: str | None, login: str | None, place: str) -> None:
    """Raise InputError for a text that is not the name of an image, for a login that is not a reference to a
    secret, and for a login of an image whose registry is unknown. `place` is the kind of the job, such as
    `command`."""
    if image is not None and not _IMAGE.fullmatch(image):
        raise InputError(
            f"{image!r} is not the name of a container image",
            hint="Write for example registry.example.com/team/train:1.2, or the name with @sha256:….",
            place=f"{place}.container",
        )
    if login is None:
        return
    if image is None:
        raise InputError(
            "`registry_login` needs `container`",
            hint="Name the image in `container`.",
            place=f"{place}.registry_login",
        )
    if not SECRET_REFERENCE.fullmatch(login):
        raise InputError(
            "a login is not written into a pipeline file",
            hint="Write `registry_login: {secret: NAME}`. The value of the secret is USER:PASSWORD.",
            place=f"{place}.registry_login",
        )
    if not registry_of(image):
        raise InputError(
            f"the name of the image {image!r} does not contain the registry for the login",
            hint=f"Write the complete name, for example registry.example.com/{image}.",
            place=f"{place}.container",
        )


def registry_of(image: str) -> str:
    """Return the registry of an image, such as `registry.example.com:5000`, or an empty text if the name of
    the image does not contain its registry."""
    found = _IMAGE.fullmatch(image)
    return (found["host"] if found else None) or ""


def is_pinned(image: str) -> bool:
    """Return whether the name of an image contains its digest, so that the image never changes."""
    found = _IMAGE.fullmatch(image)
    return bool(found and found["digest"])
