"""Writes what a rented machine runs when it boots, as pure functions: cloud-init's user data, and the script
that arms the machine's watcher.

The watcher (`watch.sh`) ends the machine without help from outside. The script that arms it is the first
command of each boot, before any package is installed and before the SSH server starts. The same script can
be run again over SSH on machines whose provider runs no user data.
"""

import json
import shlex
from functools import cache
from importlib.resources import files

from gridmill.domain.frozen import dataclass

WATCH = "/var/lib/gridmill/watch"
"""The folder of the watcher. `reason` in this folder has the reason why the machine ended itself."""
RUN = "/run/gridmill"
"""The folder for the files of one boot: `contact` is changed by the control node, `state` and `notice` are
written by the watcher."""
FARM = "/var/lib/gridmill/farm"
"""The home of the light server on a rented machine."""
END = '[ "$ROUND" -gt 12 ] && poweroff -ff; shutdown -h now || poweroff || poweroff -f'
"""The command that ends a machine. If the shutdown hangs, the power is switched off in a later round, without
the system manager (halt(8), option -f twice), because it may hang too. The rental ends too, if the provider
terminates machines that shut down."""
USER_DATA_BYTES = 16 << 10
"""The largest user data that EC2 accepts, before it is encoded."""

NOTICES = {
    "aws": (
        "u=http://169.254.169.254/latest; "
        "t=$(curl -sf -m 2 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' $u/api/token); "
        'curl -sf -m 2 -H "X-aws-ec2-metadata-token: $t" $u/meta-data/spot/instance-action'
    ),
    "gcp": (
        "[ \"$(curl -sf -m 2 -H 'Metadata-Flavor: Google' "
        'http://metadata.google.internal/computeMetadata/v1/instance/preempted)" = TRUE ] && echo preempted'
    ),
}
"""For each provider, the command that prints something if the provider is about to end a spot machine. AWS:
"Spot Instance interruption notices" in the EC2 user guide (`spot/instance-action` exists from two minutes
before the interruption on). Google: "Spot VMs", section "Handle preemption" (`instance/preempted` becomes
TRUE)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """The settings of a machine's watcher. The machine ends itself after `dead_man_seconds` without contact
    and without a running job whose result can be exported, and after `cap_seconds` in any case. `end_command`
    ends the machine, and `notice_command` prints the provider's notice that it will end the machine (empty:
    there are no such notices). `margin_seconds` before the end of `cap_seconds`, or after a notice, the farm
    on the machine uploads results and checkpoints. The watcher looks every `step_seconds`. The farm renews
    its files for the watcher every 20 s, and they count for `stale_seconds`."""

    dead_man_seconds: int
    cap_seconds: int
    margin_seconds: int = 0
    notice_command: str = ""
    end_command: str = END
    step_seconds: int = 5
    stale_seconds: int = 120
    farm: str = FARM
    run: str = RUN

    def text(self) -> str:
        """Returns the file with the settings, in the syntax of a shell."""
        values = {
            "DEAD_MAN": self.dead_man_seconds,
            "CAP": self.cap_seconds,
            "MARGIN": self.margin_seconds,
            "STEP": self.step_seconds,
            "STALE": self.stale_seconds,
            "FARM": self.farm,
            "RUN": self.run,
            "END": self.end_command,
            "NOTICE": self.notice_command,
        }
        return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineKeys:
    """The keys of one machine: the key pair of its SSH server (OpenSSH format), and the public key with
    which the control node logs in."""

    host_private: str
    host_public: str
    user_public: str


@cache
def _script() -> str:
    return (files(__package__) / "watch.sh").read_text()


_UNIT = """[Unit]
Description=Ends this rented machine when nobody needs it any more
DefaultDependencies=no
After=local-fs.target
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh {watch}/watch.sh
Restart=always
RestartSec=1
OOMScoreAdjust=-1000
[Install]
WantedBy=sysinit.target
"""
_UPDATES = "apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service "
_UPDATES += "unattended-upgrades.service dnf-automatic.timer packagekit.service"
"""The units that install packages at any time. An upgrade of a GPU driver under a running job breaks the
job."""
_ARM = """umask 077
mkdir -p {watch} && cd {watch} || exit 1
chmod 755 .. # the Unix users of jobs pass through this folder
cat > watch.sh.new <<'GRIDMILL-END'
{script}GRIDMILL-END
cat > settings.new <<'GRIDMILL-END'
{settings}GRIDMILL-END
mv -f settings.new settings && mv -f watch.sh.new watch.sh
if [ -d /run/systemd/system ]; then
cat > /etc/systemd/system/gridmill-watch.service <<'GRIDMILL-END'
{unit}GRIDMILL-END
systemctl daemon-reload
systemctl enable gridmill-watch.service
systemctl start --no-block gridmill-watch.service
systemctl mask --now --no-block {updates}
else
mkdir -p {run}
exec 9> {run}/lock
if flock -n 9; then
GRIDMILL_WATCH={watch} setsid sh -c 'while :; do sh {watch}/watch.sh; sleep 1; done' < /dev/null >> log 2>&1 &
fi
fi
exit 0
"""
_METADATA = """rule='OUTPUT -d 169.254.169.254 -p tcp -m owner ! --uid-owner 0 -j REJECT'
iptables -C $rule 2>/dev/null || iptables -I $rule 2>/dev/null && exit 0
rule='to 169.254.169.254 ipproto tcp uidrange 1-4294967294 prohibit'
ip rule del $rule 2>/dev/null
ip rule add $rule && exit 0
echo 'gridmill: jobs can read the instance metadata, because iptables and ip are missing' >&2
exit 0
"""
"""Only root may read the instance metadata, which contains this user data and the credentials of the
machine. The jobs of a rented machine run as another user."""
_LOGIN = """cd /etc/ssh/sshd_config.d || exit 0
printf 'PermitRootLogin prohibit-password\\nPasswordAuthentication no\\n' > 00-gridmill.conf
"""
"""Some images permit the login of root only with a forced command."""
_HOST_KEY = """grep -qs Google /sys/class/dmi/id/product_name || exit 0
grep -qs '^set_host_keys = false' /etc/default/instance_configs.cfg && exit 0
printf '\\n[InstanceSetup]\\nset_host_keys = false\\n' >> /etc/default/instance_configs.cfg
"""
"""The guest agent of Google replaces the host keys of the SSH server at the first boot, also those of
cloud-init, unless its configuration forbids it (guest-agent, README, section "Configuration")."""


def arm_script(watch: WatchSettings, folder: str = WATCH) -> str:
    """Returns the shell script that installs the watcher and starts it. With systemd, the watcher is a unit
    that starts with every boot. Otherwise the watcher is a background process, which holds a lock, so that
    it is started once per boot. The script can be run again, which replaces the settings."""
    return _ARM.format(
        watch=folder,
        script=_script(),
        settings=watch.text(),
        unit=_UNIT.format(watch=folder),
        updates=_UPDATES,
        run=watch.run,
    )


def user_data(watch: WatchSettings, keys: MachineKeys) -> str:
    """Returns the user data of a machine: a cloud-config document, as JSON, which is valid YAML. The
    commands of `bootcmd` run early in every boot. The SSH server gets its host key from the document, so
    that no connection has to trust an unknown key."""
    config = {
        "bootcmd": [["sh", "-c", one] for one in (arm_script(watch), _LOGIN, _METADATA, _HOST_KEY)],
        "disable_root": False,
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": keys.host_private, "ed25519_public": keys.host_public},
        "ssh_authorized_keys": [keys.user_public],
    }
    return f"#cloud-config\n{json.dumps(config, sort_keys=True)}\n"
