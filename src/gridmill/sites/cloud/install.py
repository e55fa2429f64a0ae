"""Installs Gridmill on a rented machine over SSH, with packages of a package index, or with the packages of
this control node.
"""

import shlex
import tarfile
import time
from collections.abc import Callable
from importlib.metadata import Distribution
from pathlib import Path
from typing import IO

from gridmill.codec import decode
from gridmill.domain.amounts import show_bytes, show_seconds
from gridmill.domain.frozen import dataclass
from gridmill.errors import GridmillError, InstallError, UnavailableError, UnfitMachineError
from gridmill.sites.cloud.own_packages import (
    DESCRIBE,
    BasePython,
    cpu_builds,
    misfit,
    needed_packages,
    pip_package,
    this_python,
    wheel_of,
)
from gridmill.sites.cloud.settings import CloudSettings, PackageSource
from gridmill.sites.cloud.wheel import build_wheel
from gridmill.sites.ssh import CompletedCommand, SshShell, last_line

_INSTALL_SECONDS = 1200.0
_SEND_SECONDS = 3600.0
_DESCRIBE_SECONDS = 60.0
_INDEX_SECONDS = 900.0
"""The time for which an installation is repeated while the package index does not answer."""
_LEAST_PYTHON = (3, 11)
_FROM_INDEX = """umask 022
set -e
mkdir -p "$PLACE"
cd "$PLACE"
cat > "$NAME"
venv() { "$BASE" -m venv --system-site-packages env; }
venv || { apt-get update -q && apt-get install -qy python3-venv && venv; }
env/bin/python -m pip install --disable-pip-version-check --no-compile --quiet $OPTIONS "$NAME$EXTRAS"
touch done
"""
_DESCRIBE = f"""exec "$BASE" - <<'GRIDMILL-END'
{DESCRIBE}GRIDMILL-END
"""
_LIST = """mkdir -p "$PLACE/wheels" && cd "$PLACE/wheels" && for one in *.whl; do
    [ -e "$one" ] && wc -c "$one"
done
exit 0
"""
_RECEIVE = """umask 022
mkdir -p "$PLACE/wheels" && cd "$PLACE/wheels" && exec tar -xf -
"""
_FROM_HOME = """umask 022
set -e
cd "$PLACE"
rm -rf env
"$BASE" -m venv --system-site-packages $WITHOUT_PIP env || {
    echo "$BASE cannot make a virtual environment" >&2
    exit 1
}
export PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_FIND_LINKS="$PLACE/wheels"
env/bin/python -P $PIP install --disable-pip-version-check --no-compile --quiet "wheels/$NAME$EXTRAS"
rm -rf wheels
touch done
"""
"""The script that installs the wheels that were sent. If the control node has pip, this pip runs from its
wheel, so that the machine needs neither pip nor ensurepip."""
_COMPILE = """setsid nice -n 19 env/bin/python -P -m compileall -q env/lib < /dev/null > /dev/null 2>&1 &
"""
"""The end of both scripts. The modules are compiled while the machine is used already, because the users of
jobs cannot store compiled modules."""
_OFFLINE = ("Retrying", "Temporary failure", "ConnectionError", "Could not resolve", "timed out")
_REMEDY = (
    "Set `image` to an image that contains Gridmill (`gridmill build image`), set `base_python` of the site "
    "to a Python {python} of the machine, or let the machine reach a package index."
)


def with_variables(script: str, **values: object) -> str:
    """Returns the script with these shell variables set at its beginning."""
    head = "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())
    return head + script


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wheels:
    """The wheels for one machine: those of the packages, and that of pip, if the control node has it."""

    packages: tuple[Path, ...]
    pip: Path | None

    @property
    def every(self) -> tuple[Path, ...]:
        """Returns all wheels."""
        return self.packages if self.pip is None else (*self.packages, self.pip)


class Installer:
    """Installs Gridmill on one machine. `wheels` is the folder in which the wheels of this control node are
    cached, and `say` is called with the current step."""

    def __init__(
        self,
        shell: SshShell,
        site: CloudSettings,
        wheels: Path,
        say: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shell, self._site, self._folder, self._say = shell, site, wheels, say
        self._monotonic = monotonic
        self._failing_since: float | None = None
        """The time at which the package index did not answer for the first time."""

    def install(self, place: str, gpus: int) -> str:
        """Installs Gridmill in the folder `place` of a machine with so many GPUs, and returns `wheel` or
        `home`, see MachineReport. May be repeated. Raises UnfitMachineError if no machine with this image can
        be used, or if the package index has not answered for 15 minutes, InstallError if it does not answer
        now, and UnavailableError."""
        base = self._base_python()
        source = self._site.packages
        if source is PackageSource.HOME:
            self._install_from_home(place, base, gpus)
            return "home"
        self._say("installs Gridmill")
        done = self._install_from_index(place)
        if done.status == 0:
            return "wheel"
        error = _index_error(done)
        if source is PackageSource.INDEX:
            raise self._lasting(error) or error
        try:
            self._install_from_home(place, base, gpus)
        except UnfitMachineError as second:
            raise UnfitMachineError(
                f"{error.message}; the packages of the control node cannot be used either: {second.message}",
                hint=second.hint,
            ) from second
        return "home"

    def _lasting(self, error: GridmillError) -> UnfitMachineError | None:
        """Returns the error that replaces an InstallError that lasts, because another machine with this image
        would wait for the same package index."""
        if not isinstance(error, InstallError):
            return None
        if self._failing_since is None:
            self._failing_since = self._monotonic()
        waited = self._monotonic() - self._failing_since
        if waited < _INDEX_SECONDS:
            return None
        return UnfitMachineError(f"{error.message} (repeated for {show_seconds(waited)})", hint=error.hint)

    def _base_python(self) -> BasePython:
        """Returns the Python of the machine. Raises UnfitMachineError if it is missing or too old."""
        name = self._site.base_python
        done = self._shell.run(with_variables(_DESCRIBE, BASE=name), seconds=_DESCRIBE_SECONDS)
        if done.status:
            raise _unfit(f"the machine has no usable Python {name!r}: {last_line(done.err)}")
        base = decode(done.out, BasePython)
        if tuple(map(int, base.version.split("."))) < _LEAST_PYTHON:
            raise _unfit(f"{name} of the machine is Python {base.version}, and Gridmill needs 3.11 or newer")
        return base

    def _install_from_index(self, place: str) -> CompletedCommand:
        wheel = build_wheel()
        # without retries, a machine without an index uses the packages from home a minute earlier
        is_last = self._site.packages is PackageSource.INDEX
        script = with_variables(
            _FROM_INDEX + _COMPILE,
            PLACE=place,
            NAME=wheel.name,
            BASE=self._site.base_python,
            EXTRAS=self._extras_text(),
            OPTIONS="" if is_last else "--retries 1 --timeout 10",
        )
        return self._shell.run(script, wheel.content, seconds=_INSTALL_SECONDS)

    def _extras_text(self) -> str:
        """Returns the extras in brackets; empty if there are none, because pip refuses empty brackets."""
        return f"[{self._site.extras}]" if self._site.extras else ""

    def _install_from_home(self, place: str, base: BasePython, gpus: int) -> None:
        self._say("makes wheels of the packages of the control node")
        extras = [one for one in self._site.extras.split(",") if one]
        packages = needed_packages("gridmill", extras, base.packages, base.requires)
        _check_builds(packages, gpus)
        pip = pip_package()
        wheels = _Wheels(
            packages=tuple(wheel_of(one, self._folder) for one in packages),
            pip=None if pip is None else wheel_of(pip, self._folder),
        )
        why = misfit(this_python(), base, [one.name for one in wheels.packages])
        if why:
            raise _unfit(f"the packages of the control node do not fit the machine: {why}")
        name = self._send(place, wheels)
        self._say("installs Gridmill with the packages of the control node")
        script = with_variables(
            _FROM_HOME + _COMPILE,
            PLACE=place,
            NAME=name,
            BASE=self._site.base_python,
            EXTRAS=self._extras_text(),
            PIP="-m pip" if wheels.pip is None else f"wheels/{wheels.pip.name}/pip",
            WITHOUT_PIP="" if wheels.pip is None else "--without-pip",
        )
        done = self._shell.run(script, seconds=_INSTALL_SECONDS)
        if done.status:
            raise _unfit(f"the packages of the control node cannot be installed: {last_line(done.err)}")

    def _send(self, place: str, wheels: _Wheels) -> str:
        """Sends the wheels that the machine does not have completely, and the wheel of Gridmill. Returns its
        file name. A repeated call continues after the last complete wheel."""
        gridmill = build_wheel()
        there = self._sizes_on_machine(place)
        try:
            missing = [one for one in wheels.every if there.get(one.name) != one.stat().st_size]
            size = sum(one.stat().st_size for one in missing)
        except OSError as error:  # a package was upgraded, and another lease has made its new wheel
            raise UnavailableError(f"a wheel cannot be read: {error.filename}: {error.strerror}") from error
        self._say(f"sends {len(missing)} packages of the control node ({show_bytes(size)})")

        def write(stream: IO[bytes]) -> None:
            with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for one in missing:
                    archive.add(one, arcname=one.name, recursive=False)

        receive = with_variables(_RECEIVE, PLACE=place)
        self._received(self._shell.stream(receive, write, seconds=_SEND_SECONDS))
        script = with_variables('cat > "$PLACE/wheels/$NAME"', PLACE=place, NAME=gridmill.name)
        self._received(self._shell.run(script, gridmill.content, seconds=_DESCRIBE_SECONDS))
        return gridmill.name

    def _sizes_on_machine(self, place: str) -> dict[str, int]:
        done = self._received(self._shell.run(with_variables(_LIST, PLACE=place)))
        rows = (line.split() for line in done.text.splitlines())
        return {row[1]: int(row[0]) for row in rows if len(row) == 2}

    def _received(self, done: CompletedCommand) -> CompletedCommand:
        if done.status:
            raise UnavailableError(f"the packages could not be sent to the machine: {last_line(done.err)}")
        return done


def _check_builds(packages: tuple[Distribution, ...], gpus: int) -> None:
    """Raises UnfitMachineError for a machine with GPUs that would get a build without GPU support."""
    without = cpu_builds(packages) if gpus else ()
    if without:
        raise UnfitMachineError(
            "the machine has GPUs, and the packages of the control node have no GPU support: "
            f"{', '.join(without)}",
            hint="Use an image that contains PyTorch for GPUs, or let the machine reach a package index.",
        )


def _index_error(done: CompletedCommand) -> GridmillError:
    why = last_line(done.err)
    if any(word in done.err for word in _OFFLINE):
        return InstallError(
            f"Gridmill could not be installed from the package index of the machine now: {why}",
            hint="Without a package index, set `packages: home` of the site, or use a prepared image.",
        )
    return _unfit(f"Gridmill could not be installed from the package index of the machine: {why}")


def _unfit(why: str) -> UnfitMachineError:
    return UnfitMachineError(why, hint=_REMEDY.format(python=this_python().version))
