"""Prepares one rented machine over SSH: waits for its SSH server, checks the machine, installs Gridmill and
starts the light server. Afterwards it keeps in contact with the machine. Each step can be repeated.
"""

import json
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

from gridmill.domain.frozen import dataclass
from gridmill.errors import MachineFaultError, StorageError, UnavailableError, UnfitMachineError
from gridmill.private_files import write_private
from gridmill.sites.cloud.boot import FARM, WATCH, WatchSettings, arm_script
from gridmill.sites.cloud.facts import INSTALLED, PROBE, Facts, Promise, faults, misfit, read_facts
from gridmill.sites.cloud.install import Installer, with_variables
from gridmill.sites.cloud.keys import KeyFolder
from gridmill.sites.cloud.settings import CloudSettings
from gridmill.sites.cloud.wheel import installed_hash
from gridmill.sites.ssh import CompletedCommand, SshShell, last_line
from gridmill.version import __version__

PORT = 8700
"""The port of the light server on the loopback address of the machine."""
_SSH_SECONDS = 15.0
"""The longest time for which one call waits for the SSH server. The caller repeats the call."""
_PAUSE_SECONDS = 0.2
_CHECK_SECONDS = 90.0
_CLEAN_SECONDS = 120.0
_START_SECONDS = 90.0
_CONTACT_SECONDS = 10.0
_MEMORY_SHARE = 0.9
"""The fraction of the machine's memory that pods may use. The system and the light server use the rest."""
_PLACES = "/opt/gridmill-{hash}"

START = """umask 022
mkdir -p "$FARM" && chmod 711 "$FARM" && cd "$FARM" || exit 1
export GRIDMILL_HOME="$FARM" GRIDMILL_ROOT="$FARM/storage" GRIDMILL_MEMORY="$MEMORY"
boot=$(cat /proc/sys/kernel/random/boot_id)
# after a reboot, another process may have the number of the server
same_boot() { [ ! -e up.boot ] || [ "$(cat up.boot)" = "$boot" ]; }
alive() { [ -s up.pid ] && same_boot && kill -0 "$(cat up.pid)" 2>/dev/null; }
if ! alive; then
    rm -f up.ready up.pid
    (umask 077 && : > up.out && chmod 600 up.out)
    echo "$boot" > up.boot
    # the server itself writes its number first, because this script may be killed
    setsid sh -c 'echo $$ > up.pid; exec "$@"' up "$PYTHON" -P -m gridmill up --light --json \
        --listen "127.0.0.1:$PORT" --tenant-disk 0 --tenant-files 0 < /dev/null > up.out 2>> up.log &
    started=1
fi
rounds=0
until [ -s up.pid ] || [ $rounds -gt 200 ]; do
    rounds=$((rounds + 1))
    sleep 0.05
done
rounds=0
until [ -e up.ready ] || grep -qs fingerprint up.out; do
    rounds=$((rounds + 1))
    if ! alive || [ $rounds -gt 1200 ]; then tail -n 5 up.log >&2; exit 1; fi
    sleep 0.05
done
touch up.ready
line=$(grep -s '"join"' up.out)
rm -f up.out # it contains the secret with which the server can be joined
[ "$JOINED" = 1 ] && exit 0
if [ -n "$started" ] && [ -n "$line" ]; then printf '%s\\n' "$line"; else
    "$PYTHON" -P -m gridmill farm invite --json
fi
"""
"""The script that starts the light server, unless it runs, and prints a join line. Its variables are FARM,
PORT, PYTHON, MEMORY, JOINED, and an empty `started`. Jobs can read the folder, but not `up.out`."""
_CONTACT = """mkdir -p "$RUN"
echo "$MARK" > "$RUN/contact"
cat "$RUN/state" || exit 1
printf 'notice='
cat "$RUN/notice" 2>/dev/null
exit 0
"""
_CLEAN = r"""umask 022
set -e
has() {
    found=$("$PYTHON" -P - "$EXTRAS" 2>/dev/null <<'GRIDMILL-END'
PROGRAM
GRIDMILL-END
) || :
    [ "$found" = "gridmill=$VERSION" ]
}
home=${PYTHON%/bin/*}
if ! has; then
    if [ "$home" = "$PYTHON" ] || { [ -e "$home" ] && [ ! -L "$home" ]; }; then
        echo "Gridmill cannot be installed as $PYTHON, because $home exists" >&2
        exit 1
    fi
    mkdir -p "$(dirname "$home")"
    ln -sfn "$PLACE/env" "$home"
    has || { echo "$PYTHON does not contain Gridmill $VERSION with the extras '$EXTRAS'" >&2; exit 1; }
fi
if [ -d "$WATCH" ]; then
    mkdir -p "$RUN"
    rm -rf "$RUN/watch"
    cp -R "$WATCH" "$RUN/watch"
    if [ -d /run/systemd/system ]; then
        systemd-run --quiet --unit=gridmill-watch-build -p Restart=always -p RestartSec=1 \
            -p OOMScoreAdjust=-1000 --setenv=GRIDMILL_WATCH="$RUN/watch" /bin/sh "$RUN/watch/watch.sh"
        systemctl disable --now gridmill-watch.service
        rm -f /etc/systemd/system/gridmill-watch.service
    else
        loop="while :; do sh $RUN/watch/watch.sh; sleep 1; done"
        GRIDMILL_WATCH="$RUN/watch" setsid sh -c "$loop" < /dev/null > /dev/null 2>&1 &
    fi
    rm -rf "$WATCH"
fi
rm -rf "$FARM"
rm -f /etc/ssh/ssh_host_* /root/.ssh/authorized_keys* /home/*/.ssh/authorized_keys*
rm -f /root/.bash_history /home/*/.bash_history
if command -v cloud-init > /dev/null; then cloud-init clean --logs; fi
rm -rf /var/lib/cloud/instance /var/lib/cloud/instances /var/lib/cloud/sem /run/cloud-init/sem
: > /etc/machine-id
sync
""".replace("PROGRAM\n", INSTALLED)
"""The script that deletes what must not be in an image: the state of the watcher and of the light server,
keys, and the state of cloud-init, so that the next boot is a first boot. The watcher goes on from a folder in
memory. It can be repeated. Its variables are PYTHON, PLACE, VERSION, EXTRAS, WATCH, FARM and RUN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An installation of Gridmill on a machine: its Python, and how it was installed (`image`, `cache`,
    `wheel` or `home`, see MachineReport)."""

    python: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """The last state of the machine's watcher: the seconds since its first start, the seconds without
    contact and without a running job, and the provider's notice that it will end the machine (empty: no
    notice)."""

    used_seconds: int
    silent_seconds: int
    is_working: bool
    notice: str = ""


def read_watch(text: str) -> WatchState:
    """Parses the state that the watcher has written. Raises UnavailableError if it is not complete."""
    first, _, notice = text.partition("\n")
    values = dict(word.split("=", 1) for word in first.split() if "=" in word)
    try:
        return WatchState(
            used_seconds=int(values["used"]),
            silent_seconds=int(values["silent"]),
            is_working=values["working"] == "1",
            notice=notice.removeprefix("notice=").strip(),
        )
    except (KeyError, ValueError) as error:
        raise UnavailableError(f"the watcher of the machine wrote {first[:80]!r}") from error


def place_of(site: CloudSettings, gridmill: str) -> str:
    """Returns the folder of an installation on a machine. `gridmill` is the hash of the files of Gridmill.
    The folder also depends on the settings that change the installation, so that an earlier installation is
    not used with other settings."""
    extras = ",".join(sorted({one for one in site.extras.split(",") if one}))
    digest = sha256(f"{gridmill}\n{extras}\n{site.base_python}".encode()).hexdigest()
    return _PLACES.format(hash=digest[:16])


class RentedMachine:
    """One rented machine, as the control node reaches it over SSH. `say` is called with the current phase.
    Every method raises UnavailableError if the machine does not answer."""

    def __init__(
        self,
        keys: KeyFolder,
        site: CloudSettings,
        watch: WatchSettings,
        say: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
        *,
        wheels: Path,
    ) -> None:
        """`wheels` is the folder of this home in which wheels of its packages are cached."""
        self.keys = keys
        self._site, self._watch, self._say = site, watch, say
        self._monotonic = monotonic
        self._began = monotonic()
        hint = f"Look at the machine's console at the provider, or try `gridmill ssh {keys.alias}`."
        self._shell = SshShell(keys.alias, keys.options, hint=hint)
        self._installer = Installer(self._shell, site, wheels, say, monotonic)
        self._python = ""
        self._memory_bytes = 0
        self._is_answering = False

    def wait_for_ssh(self) -> None:
        """Waits some seconds until the SSH server of the machine answers. Raises UnavailableError if it has
        not answered yet, and MachineFaultError if the machine had the time `boot_timeout` of the site for
        it."""
        until = self._monotonic() + _SSH_SECONDS
        while not self._is_answering:
            self._say(f"waits for the SSH server ({self._monotonic() - self._began:.0f} s)")
            try:
                self._shell.run("true")
                self._is_answering = True
            except UnavailableError as error:
                self._check_boot_time(error)
                if self._monotonic() >= until:
                    raise
                time.sleep(_PAUSE_SECONDS)

    def _check_boot_time(self, error: UnavailableError) -> None:
        waited = self._monotonic() - self._began
        if waited >= self._site.boot_timeout_seconds:
            raise MachineFaultError(
                f"its SSH server did not answer within {waited:.0f} s: {error.message}", hint=error.hint
            ) from error

    def check(self, promise: Promise) -> Facts:
        """Checks that the machine is as promised, and arms its watcher if its boot script did not run.
        Raises MachineFaultError and UnfitMachineError."""
        self._say("checks the machine")
        facts = self._probe()
        if not facts.is_watched:
            self.arm()
        found = faults(facts, promise)
        if found:
            raise MachineFaultError(f"the machine is defective: {'; '.join(found)}")
        why = misfit(facts, promise)
        if why:
            raise UnfitMachineError(
                why, hint="Set `image` to an image with podman, or install it and run `gridmill build image`."
            )
        self._memory_bytes = facts.memory_bytes
        return facts

    def _probe(self) -> Facts:
        cached = self._place()
        script = with_variables(
            PROBE,
            RUN=self._watch.run,
            MARK=token_hex(8),
            PYTHON=self._site.python,
            EXTRAS=self._site.extras,
            CACHED=cached,
        )
        return read_facts(self._done(script, _CHECK_SECONDS).text)

    def _place(self) -> str:
        return place_of(self._site, installed_hash())

    def arm(self) -> None:
        """Arms the watcher over SSH, and waits until the watcher runs. May be repeated. Raises
        UnavailableError."""
        wait = 'i=0; while [ ! -s "$RUN/state" ]; do i=$((i + 1)); [ $i -lt 100 ] || exit 1; sleep 0.1; done'
        armed = f"({arm_script(self._watch)})\n{wait}"
        self._done(with_variables(armed, RUN=self._watch.run))

    def install(self, facts: Facts) -> Installed:
        """Installs this version of Gridmill, unless the image or an earlier installation contains it with
        the extras of the site. Raises what `Installer.install` raises."""
        if facts.gridmill == __version__ and not facts.lacking:
            return self._installed(self._site.python, "image")
        if facts.cached:
            return self._installed(f"{facts.cached}/env/bin/python", "cache")
        how = self._installer.install(self._place(), len(facts.gpus))
        return self._installed(f"{self._place()}/env/bin/python", how)

    def clean(self) -> None:
        """Makes the installed Python the one of the setting `python`, and deletes everything that belongs to
        this one machine, also the keys with which the control node logs in. The watcher goes on in memory
        until the next boot, at which the user data arm it again. Raises UnavailableError and
        MachineFaultError."""
        script = with_variables(
            _CLEAN,
            PYTHON=self._site.python,
            PLACE=self._place(),
            VERSION=__version__,
            EXTRAS=self._site.extras,
            WATCH=WATCH,
            FARM=FARM,
            RUN=self._watch.run,
        )
        done = self._shell.run(script, seconds=_CLEAN_SECONDS)
        if done.status:
            raise MachineFaultError(f"the machine could not be prepared for an image: {last_line(done.err)}")

    def _installed(self, python: str, how: str) -> Installed:
        self._python = python
        return Installed(python=python, how=how)

    def start(self, *, joined: bool) -> str:
        """Starts the light server, unless it runs. Returns a join line, unless this home has `joined` the
        server."""
        self._say("starts the light server")
        script = with_variables(
            START,
            FARM=FARM,
            PORT=PORT,
            PYTHON=self._python,
            MEMORY=int(self._memory_bytes * _MEMORY_SHARE),
            JOINED=int(joined),
            started="",
        )
        text = self._done(script, _START_SECONDS).text
        self._remember()
        if joined:
            return ""
        try:
            return str(json.loads(text.strip().splitlines()[-1])["join"])
        except (ValueError, KeyError, IndexError) as error:
            raise UnavailableError(f"the light server printed no join line: {text[-200:]!r}") from error

    def _remember(self) -> None:
        """Stores how the server was started, so that another control node can start it again."""
        try:
            text = json.dumps({"python": self._python, "memory_bytes": self._memory_bytes})
            write_private(self.keys.path / "prepared.json", text.encode())
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror}", place=str(self.keys.path)) from error

    def start_again(self) -> None:
        """Starts the light server of a prepared machine again, if it has ended."""
        if not self._python:
            try:
                stored = json.loads((self.keys.path / "prepared.json").read_text())
            except (OSError, ValueError) as error:
                raise UnavailableError(
                    f"the machine {self.keys.alias} was not prepared completely"
                ) from error
            self._python, self._memory_bytes = stored["python"], stored["memory_bytes"]
        self.start(joined=True)

    def contact(self) -> WatchState:
        """Shows the machine that the control node is in contact with it, and returns the state of its
        watcher."""
        script = with_variables(_CONTACT, RUN=self._watch.run, MARK=token_hex(8))
        return read_watch(self._done(script, _CONTACT_SECONDS).text)

    def _done(self, script: str, seconds: float = 30.0) -> CompletedCommand:
        done = self._shell.run(script, seconds=seconds)
        if done.status:
            raise UnavailableError(
                f"a command on the machine {self.keys.alias} failed: {last_line(done.err)}"
            )
        return done

    def close(self) -> None:
        """Closes the connection. The machine continues."""
        self._shell.close()
