"""Makes a root folder of a Containerfile's steps, where no container engine runs. Needs root and debootstrap.

    python3 packaging/build_root.py ROOT [--arg EXTRAS=tls,data] [--base FOLDER] [--bind FILE:INSIDE]
        [--env A=B]

FROM debian:SUITE-slim becomes debootstrap's smallest root of that suite (or a copy of `--base`); COPY and RUN
are done in it, in order, with ARG and ENV. `--bind` (read-only) and `--env` hold for the steps alone: for a
proxy's certificate, a mirror.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
IGNORED = ("LABEL", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD")
"""What says how an image is called and started, and changes no file."""


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Instruction and words, one for each logical line. Raises ValueError for what this does not know."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, words = line.partition(" ")
        if name not in ("FROM", "ARG", "ENV", "COPY", "RUN", *IGNORED):
            raise ValueError(f"{name} is not known here: {line}")
        yield name, words.strip()


OWN = (
    "mount -t proc proc proc",
    "mount -t tmpfs -o mode=755 dev dev",
    "mknod -m 666 dev/null c 1 3; mknod -m 666 dev/zero c 1 5; mknod -m 666 dev/urandom c 1 9",
    "mknod -m 666 dev/random c 1 8; ln -s /proc/self/fd dev/fd; mkdir dev/shm; chmod 1777 dev/shm",
)
READ_ONLY = "mount --bind '{path}' '{inside}'; mount -o remount,ro,bind '{inside}'"


class Build:
    """A root folder that is being made."""

    def __init__(self, root: Path, context: Path, told: argparse.Namespace) -> None:
        self.root, self.context, self.told = root, context, told
        self.args = dict(one.split("=", 1) for one in told.arg)
        self.values: dict[str, str] = {}

    def do(self, name: str, words: str) -> None:
        """One step. Raises subprocess.CalledProcessError."""
        print(f"{name} {words}", flush=True)
        if name not in IGNORED:
            getattr(self, f"_{name.lower()}")(words)

    def _from(self, words: str) -> None:
        if self.told.base:
            subprocess.run(("cp", "-a", f"{self.told.base}/.", str(self.root)), check=True)
            return
        suite = words.removeprefix("debian:").removesuffix("-slim")
        subprocess.run(("debootstrap", "--variant=minbase", suite, str(self.root)), check=True)

    def _arg(self, words: str) -> None:
        name, _, usual = words.partition("=")
        self.values[name] = self.args.get(name, usual)

    def _env(self, words: str) -> None:
        self.values.update(one.split("=", 1) for one in shlex.split(words))

    def _copy(self, words: str) -> None:
        *sources, target = words.split()
        there = self.root / target.lstrip("/")
        for source in sources:
            if (self.context / source).is_dir():
                shutil.copytree(self.context / source, there, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                there.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.context / source, there)

    def _run(self, words: str) -> None:
        """What it sees of this machine it cannot change."""
        pairs = [one.partition(":") for one in ("/etc/resolv.conf", *self.told.bind)]
        binds = {(inside or path).lstrip("/"): path for path, _, inside in pairs}
        made = [inside for inside in binds if self._mount_point(inside)]
        script = [*OWN, *(READ_ONLY.format(path=path, inside=inside) for inside, path in binds.items())]
        script += [f"exec chroot . /bin/sh -c {shlex.quote(words)}"]
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        env = {
            "PATH": path,
            "HOME": "/root",
            **self.values,
            **dict(one.split("=", 1) for one in self.told.env),
        }
        apart = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-ec", "\n".join(script))
        try:
            subprocess.run(apart, cwd=self.root, env=env, check=True)
        finally:
            for inside in made:
                (self.root / inside).unlink()

    def _mount_point(self, inside: str) -> bool:
        """Whether an empty file was made, to mount one over it."""
        there = self.root / inside
        there.parent.mkdir(parents=True, exist_ok=True)
        if there.exists():
            return False
        there.touch()
        return True


def main() -> None:
    """Exits 1 with the step that failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--file", type=Path, default=HERE / "Containerfile")
    parser.add_argument("--base", help="a root to begin with, instead of debootstrap")
    for name in ("arg", "bind", "env"):
        parser.add_argument(f"--{name}", action="append", default=[])
    told = parser.parse_args()
    told.root.mkdir(parents=True, exist_ok=True)
    build = Build(told.root.resolve(), HERE.parent, told)
    for name, words in steps(told.file.read_text()):
        try:
            build.do(name, words)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{name} {words}\nended with {error.returncode}")


if __name__ == "__main__":
    main()
