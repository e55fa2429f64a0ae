"""Containers on this machine: a runtime that works, images without a registry, and a registry with a
login."""

import json
import os
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path

PROGRAMS = ("sh", "cat", "id", "sleep", "ls", "touch", "tac", "mkdir")
USER, PASSWORD = "reader", "p4ss-of-nobody:7"


@cache
def why_no_podman() -> str:
    """Returns why this machine cannot run containers with podman; empty if it can."""
    if os.getuid() != 0:
        return "the tests of containers run as root"
    if shutil.which("podman") is None:
        return "no podman here: apt-get install podman runc"
    with tempfile.TemporaryDirectory() as folder:
        conf = configuration(Path(folder))
        image = make_image(conf, "localhost/gridmill-test:probe")
        words = ["podman", "run", "--rm", "--network", "host", "--memory", "64m", image, "sh", "-c", "true"]
        done = subprocess.run(words, env={**os.environ, **conf}, capture_output=True, text=True, check=False)
        remove_image(conf, image)
    return f"podman cannot run containers here: {done.stderr.strip()[-200:]}" if done.returncode else ""


def configuration(folder: Path) -> dict[str, str]:
    """Returns the variables with which podman works on machines that permit no higher limits."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    engine = '[engine]\nruntime = "runc"\n' if shutil.which("runc") else ""
    limits = f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=1000:1000"]\n'
    (folder / "containers.conf").write_text(limits + engine)
    return {"CONTAINERS_CONF": str(folder / "containers.conf")}


def make_image(conf: dict[str, str], name: str) -> str:
    """Makes an image with a shell and a few programs of this machine, and returns its name."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "bin").mkdir()
        (root / "tmp").mkdir()
        for program in PROGRAMS:
            path = shutil.which(program)
            assert path is not None
            shutil.copy(os.path.realpath(path), root / "bin" / program)
            linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
            for word in linked.split():
                if word.startswith("/") and not (root / word[1:]).exists():
                    (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(word, root / word[1:])
        (root / "bin" / "python3").symlink_to("sh")  # for tests of trainings whose code is a shell script
        archive = subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(
            ["podman", "import", "-q", "--change", "ENV=PATH=/bin", "-", name],
            stdin=archive.stdout,
            env={**os.environ, **conf},
            capture_output=True,
            check=True,
        )
        archive.wait()
    return name


def remove_image(conf: dict[str, str], name: str) -> None:
    """Removes an image, if it exists."""
    words = ["podman", "rmi", "--force", name]
    subprocess.run(words, env={**os.environ, **conf}, capture_output=True, check=False)


def containers(conf: dict[str, str], image: str) -> list[str]:
    """Returns the names of all containers of an image, also of those that do not run."""
    words = ["podman", "ps", "--all", "--filter", f"ancestor={image}", "--format", "{{.Names}}"]
    done = subprocess.run(words, env={**os.environ, **conf}, capture_output=True, text=True, check=True)
    return done.stdout.split()


def why_no_registry() -> str:
    """Returns why there is no registry here; empty if there is one."""
    if why_no_podman():
        return why_no_podman()
    if shutil.which("docker-registry") is None or shutil.which("htpasswd") is None:
        return "no registry here: apt-get install docker-registry apache2-utils"
    return ""


@contextmanager
def registry(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Runs a registry that needs a login, by default on a loopback address. Yields its address."""
    with socket.create_server((host, 0)) as free:
        address = f"{host}:{free.getsockname()[1]}"
    users = subprocess.run(
        ["htpasswd", "-Bbn", USER, PASSWORD], capture_output=True, text=True, check=True
    ).stdout
    (folder / "htpasswd").write_text(users)
    settings = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": address, "secret": sha256(address.encode()).hexdigest()},
        "auth": {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}},
    }
    (folder / "registry.yml").write_text(json.dumps(settings))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "registry.yml")], stdout=log, stderr=log
        )
        try:
            until = time.monotonic() + 30
            while time.monotonic() < until:
                try:
                    socket.create_connection((host, int(address.rpartition(":")[2]))).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield address
        finally:
            process.terminate()
            process.wait()
