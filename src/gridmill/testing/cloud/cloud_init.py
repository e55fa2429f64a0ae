"""The part of cloud-init that the simulation has itself, for computers without cloud-init.

Source: https://cloudinit.readthedocs.io/en/latest/explanation/format.html and
https://cloudinit.readthedocs.io/en/latest/reference/modules.html. Supported are shell scripts, multipart
messages, and of cloud-config the keys of `KEYS`. Other keys are reported on the console of the machine.
"""

import base64
import gzip
import shlex
from collections.abc import Iterator, Mapping, Sequence
from email import message_from_bytes
from typing import Any

import yaml

from gridmill.domain.frozen import dataclass

KEYS = (
    "bootcmd",
    "disable_root",
    "hostname",
    "runcmd",
    "ssh_authorized_keys",
    "ssh_deletekeys",
    "ssh_genkeytypes",
    "ssh_keys",
    "ssh_pwauth",
    "users",
    "write_files",
)
_OF_USERS = {"groups", "lock_passwd", "name", "shell", "ssh_authorized_keys", "sudo"}
_ROOT_REFUSED = (
    "no-port-forwarding,no-agent-forwarding,no-X11-forwarding,"
    'command="echo \'Please login as the user \\"{user}\\" rather than the user \\"root\\".\';echo;sleep 10;'
    'exit 142" '
)
"""What cloud-init writes before the keys of root, unless `disable_root` is false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootFile:
    """A file to write. `mode` is octal, `owner` is USER:GROUP."""

    path: str
    content: bytes
    mode: str = "0644"
    owner: str = "root:root"
    is_appended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BootPlan:
    """What a machine does at its first boot: files before SSH starts, and commands afterwards. `logins` are
    pairs of a further user and an SSH key. `problems` are the parts of the user data that were not
    understood."""

    files: tuple[BootFile, ...]
    early_commands: tuple[str, ...]
    commands: tuple[str, ...]
    problems: tuple[str, ...]
    logins: tuple[tuple[str, str], ...] = ()


def boot_plan(user_data: bytes, public_keys: Sequence[str], user: str, home: str) -> BootPlan:
    """Returns what a machine with the given user data does at its first boot. `public_keys` are those of its
    key pair, `user` is the user of the image."""
    configs: list[Mapping[str, Any]] = []
    scripts: list[bytes] = []
    problems: list[str] = []
    for kind, text in _parts(user_data):
        if kind == "text/cloud-config":
            configs.append(_config(text, problems))
        elif kind == "text/x-shellscript":
            scripts.append(text)
        else:
            problems.append(f"user data of type {kind}")
    merged = {key: value for config in configs for key, value in config.items()}
    problems.extend(f"the key {key} of cloud-config" for key in merged if key not in KEYS)
    logins = tuple(_logins(merged.get("users") or (), problems))
    keys = [*public_keys, *map(str, merged.get("ssh_authorized_keys") or ())]
    files = [
        *_files(merged.get("write_files") or ()),
        *_authorized(keys, merged.get("disable_root", True), user, home),
        *_host_keys(merged.get("ssh_keys") or {}),
        *(
            BootFile(path=f"/var/lib/cloud/instance/scripts/part-{number:03}", content=script, mode="0700")
            for number, script in enumerate(scripts)
        ),
    ]
    return BootPlan(
        files=tuple(files),
        early_commands=tuple(map(_command, merged.get("bootcmd") or ())),
        commands=(
            *map(_command, merged.get("runcmd") or ()),
            *(f"/var/lib/cloud/instance/scripts/part-{number:03}" for number in range(len(scripts))),
        ),
        problems=tuple(problems),
        logins=logins,
    )


def _logins(users: Sequence[Any], problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yields each user with each of its keys. Every user has bash and `sudo`.

    Source: https://cloudinit.readthedocs.io/en/latest/reference/modules.html#users-and-groups
    """
    for each in users:
        if each == "default":
            continue
        if not isinstance(each, dict):
            problems.append(f"the user {each}")
            continue
        problems.extend(f"the key {key} of a user of cloud-config" for key in each if key not in _OF_USERS)
        for key in each.get("ssh_authorized_keys") or ():
            yield str(each["name"]), str(key).strip()


def _parts(user_data: bytes) -> Iterator[tuple[str, bytes]]:
    if user_data.startswith(b"\x1f\x8b"):
        user_data = gzip.decompress(user_data)
    if user_data.startswith(b"#!"):
        yield "text/x-shellscript", user_data
    elif user_data.startswith(b"#cloud-config"):
        yield "text/cloud-config", user_data
    elif user_data[:200].lower().startswith((b"content-type: multipart", b"mime-version:")):
        for part in message_from_bytes(user_data).walk():
            if not part.is_multipart():
                yield part.get_content_type(), bytes(part.get_payload(decode=True))
    elif user_data.strip():
        yield "unknown", user_data


def _config(text: bytes, problems: list[str]) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problems.append(f"cloud-config that is not YAML: {error}")
        return {}
    return config if isinstance(config, dict) else {}


def _command(command: object) -> str:
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command)


def _files(entries: Sequence[Mapping[str, Any]]) -> Iterator[BootFile]:
    for each in entries:
        yield BootFile(
            path=str(each["path"]),
            content=_decoded(str(each.get("content", "")), str(each.get("encoding", ""))),
            mode=str(each.get("permissions", "0644")),
            owner=str(each.get("owner", "root:root")),
            is_appended=bool(each.get("append", False)),
        )


def _decoded(content: str, encoding: str) -> bytes:
    match encoding:
        case "b64" | "base64":
            return base64.b64decode(content)
        case "gz+b64" | "gz+base64" | "gzip+base64" | "gzip+b64":
            return gzip.decompress(base64.b64decode(content))
        case _:
            return content.encode()


def _authorized(keys: Sequence[str], disable_root: bool, user: str, home: str) -> Iterator[BootFile]:
    lines = "".join(f"{key.strip()}\n" for key in keys)
    refusal = _ROOT_REFUSED.format(user=user) if disable_root else ""
    root = "".join(f"{refusal}{key.strip()}\n" for key in keys)
    if keys:
        yield BootFile(
            path=f"{home}/.ssh/authorized_keys", content=lines.encode(), mode="0600", owner=f"{user}:{user}"
        )
        yield BootFile(path="/root/.ssh/authorized_keys", content=root.encode(), mode="0600")


def _host_keys(keys: Mapping[str, str]) -> Iterator[BootFile]:
    for name, text in keys.items():
        kind, _, part = name.partition("_")
        if part in ("private", "public"):
            suffix, mode = (".pub", "0644") if part == "public" else ("", "0600")
            path = f"/etc/ssh/ssh_host_{kind}_key{suffix}"
            yield BootFile(path=path, content=f"{text.rstrip()}\n".encode(), mode=mode)
