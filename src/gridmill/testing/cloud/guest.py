"""The scripts that make a set of namespaces a machine: its disk, its first process, its user and its sshd."""

import json

from gridmill.testing.cloud.cloud_init import BootFile, BootPlan, boot_plan
from gridmill.testing.cloud.machine_host import MachineSpec

SSHD = "/usr/sbin/sshd"
USER = "ubuntu"
"""The user of the image.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/managing-users.html
"""
HOME = f"/home/{USER}"

DISK_DESCRIPTOR = 9
"""The file descriptor of the first process of a machine that is open on the folder with its disk."""
BOOT = r"""
set -e
R=$1; NAME=$2
mount --make-rprivate /
mkdir -p "$R"
mount -t tmpfs -o size=8g,mode=755 "disk" "$R"
exec 9< "$R"  # the disk can be read from outside of the machine: see NamespaceMachines.save
[ -z "$IMAGE" ] || tar -x -C "$R" --xattrs --xattrs-include='*' -p -f "$IMAGE"
mkdir -p "$R/upper" "$R/work" "$R/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$R/upper,workdir=$R/work" "$R/root"
cd "$R/root"
for d in dev sys; do mount --rbind /$d $d; done
mount -t tmpfs -o mode=1777,size=4g shm dev/shm
mount -t proc proc proc
mount -t tmpfs -o mode=755 run run
for d in root home opt srv mnt tmp var/tmp; do  # what people have there is not on a new machine
  mkdir -p "$d" "$R/own/$d" && mount --bind "$R/own/$d" "$d"
done
chmod 700 root; chmod 1777 tmp var/tmp
while IFS= read -r p; do
  # an image contains the empty folder on which this folder was mounted
  [ -z "$p" ] || {
    [ -e ".$p" ] && [ ! -e "$R/own$p" ] && [ "$(stat -c %d "$p")" = "$(stat -c %d /)" ]
  } && continue
  over=$R/over/$((at = ${at:-0} + 1))
  mkdir -p ".$p" "$over/upper" "$over/work"
  (cd "$p" && mount -t overlay overlay -o "lowerdir=.,upperdir=$over/upper,workdir=$over/work" "$R/root$p")
done <<< "$NEEDED"
mkdir -p .old; pivot_root . .old; cd /
umount -l /.old
rmdir /.old 2>/dev/null || true
hostname "$NAME"
rm -f /etc/resolv.conf; : > /etc/resolv.conf
sed -i 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf
printf '127.0.0.1 localhost %s\n' "$NAME" > /etc/hosts
echo "$NAME" > /etc/hostname
mkdir -p /run/sshd /run/lock /var/lib/cloud/instance/scripts
rm -rf /var/lib/cloud/instance/sem
trap : TERM INT HUP
trap 'exit 77' USR1  # shutdown: see FILES
echo ready > /run/machine.ready
while :; do read -r _ <&$LIFELINE; r=$?; [ $r -gt 128 ] || exit 0; done
"""
"""The first process of a machine, which makes its disk. It ends when the process of the test has ended in any
way, and with exit code 77 when the machine shuts itself down."""

FILES = r"""
set -e
USER=$1
rm -f /etc/ssh/ssh_host_*  # those of this computer
for name in shutdown poweroff halt; do rm -f /usr/sbin/$name /sbin/$name /usr/bin/$name /bin/$name; done
cat > /usr/sbin/poweroff << 'END'
#!/bin/sh
kill -USR1 1
END
cat > /usr/sbin/shutdown << 'END'
#!/bin/sh
# shutdown [-h|-P|-H] [now|+MINUTES|HH:MM] [MESSAGE]; shutdown -c
pending=/run/shutdown.pid
stop_pending() { [ ! -e $pending ] || kill "$(cat $pending)" 2>/dev/null; rm -f $pending; }
while [ $# -gt 0 ]; do
  case $1 in
    -c) stop_pending; exit 0;;
    -r|--reboot) echo 'shutdown: the simulated machine cannot reboot' >&2; exit 1;;
    -*) shift;;
    *) break;;
  esac
done
case ${1:-+1} in
  now|+0) exec /usr/sbin/poweroff;;
  +[0-9]*) seconds=$(( ${1#+} * 60 ));;
  [0-9]*:[0-9]*) seconds=$(( ( $(date -d "$1" +%s) - $(date +%s) + 86400 ) % 86400 ));;
  *) echo "Failed to parse time specification: $1" >&2; exit 1;;
esac
stop_pending
setsid sh -c "sleep ${seconds:-60}; exec /usr/sbin/poweroff" < /dev/null > /dev/null 2>&1 &
echo $! > $pending
END
cat > /usr/bin/systemctl << 'END'
#!/bin/sh
case $1 in
  poweroff|halt) exec /usr/sbin/poweroff;;
  *) echo 'System has not been booted with systemd as init system (PID 1). Can not operate.' >&2; exit 1;;
esac
END
[ "$2" = real ] || cat > /usr/bin/cloud-init << 'END'
#!/bin/sh
[ "$1" = clean ] && { rm -rf /var/lib/cloud/instance /var/lib/cloud/instances; exit 0; }
[ "$1" = status ] || { echo 'cloud-init: the simulated machine has only `status` and `clean`' >&2; exit 1; }
while [ "$2" = --wait ] && [ ! -e /var/lib/cloud/instance/boot-finished ]; do sleep 0.1; done
[ -e /var/lib/cloud/instance/boot-finished ] && echo 'status: done' || echo 'status: running'
END
cp /usr/sbin/poweroff /usr/sbin/halt
chmod 755 /usr/sbin/poweroff /usr/sbin/halt /usr/sbin/shutdown /usr/bin/systemctl /usr/bin/cloud-init
"""
_ADD_USER = r"""
getent passwd "$USER" > /dev/null || {
  if [ -d /etc/sudoers.d ]; then  # the real sudo, not the one below
    useradd -m -s /bin/bash "$USER"
    echo "$USER ALL=(ALL) NOPASSWD:ALL" > "/etc/sudoers.d/90-$USER"
  else  # without sudo, the user is another name of root
    groupadd -g 0 -o "$USER"
    useradd -o -u 0 -g 0 -m -s /bin/bash "$USER"
    cat > /usr/bin/sudo << 'END'
#!/bin/sh
while :; do case $1 in -n|-E|-H) shift;; --) shift; break;; *) break;; esac; done
exec "$@"
END
    chmod 755 /usr/bin/sudo
  fi
  usermod -p '*' "$USER"
}
mkdir -p "/home/$USER/.ssh" /root/.ssh
chown -R "$USER:$USER" "/home/$USER"
chmod 700 "/home/$USER/.ssh" /root/.ssh
"""
FILES += _ADD_USER  # FILES adds the commands that end a machine, and its user

NAME_OF_METADATA_SERVER = "echo '169.254.169.254 metadata.google.internal metadata' >> /etc/hosts"
LOGIN = (
    "set -e\nUSER=$1; KEY=$2\n"
    + _ADD_USER
    + r"""
keys="$(getent passwd "$USER" | cut -d: -f6)/.ssh/authorized_keys"
printf '%s\n' "$KEY" >> "$keys"
chown "$USER" "$keys"
chmod 600 "$keys"
"""
)
"""Adds a user with an SSH key, as the guest agent of Google does.

Source: https://cloud.google.com/compute/docs/images/guest-agent
"""

SSHD_CONFIG = r"""
set -e
if ! ls /etc/ssh/ssh_host_*_key > /dev/null 2>&1; then
  ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
fi
{
  echo 'Port 22'
  for key in /etc/ssh/ssh_host_*_key; do echo "HostKey $key"; done
  echo 'PasswordAuthentication no'
  echo 'KbdInteractiveAuthentication no'
  echo 'PermitRootLogin prohibit-password'
  echo 'UsePAM no'
  echo 'UseDNS no'
  echo 'MaxStartups 100:30:200'
  echo 'MaxSessions 100'
  echo 'Subsystem sftp internal-sftp'
} > /etc/ssh/simulated_sshd_config
echo "-----BEGIN SSH HOST KEY KEYS-----"
for key in /etc/ssh/ssh_host_*_key; do ssh-keygen -y -f "$key"; done
echo "-----END SSH HOST KEY KEYS-----"
"""
"""Writes the configuration of sshd, and the public host keys to the console, as cloud-init does."""

REAL_CLOUD_INIT = r"""
set -e
# Without systemd, nobody else runs the stages of cloud-init: see `cloud-init init --help`.
cloud-init init --local
cloud-init init
"""
REAL_CLOUD_INIT_AFTER_SSHD = r"""
cloud-init modules --mode=config
cloud-init modules --mode=final
"""
# Without PAM, sshd refuses a user whose password is locked; the user has none.
_CLOUD_CONFIG = """\
datasource_list: [NoCloud]
network: {config: disabled}
disable_network_activation: true
system_info:
  default_user: {name: ubuntu, lock_passwd: false, shell: /bin/bash, sudo: ["ALL=(ALL) NOPASSWD:ALL"]}
cloud_init_modules: [bootcmd, write-files, set_hostname, users-groups, ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user]
"""


def seed(spec: MachineSpec) -> tuple[BootFile, ...]:
    """Returns the files that give cloud-init the user data and the metadata of a machine.

    Source: https://cloudinit.readthedocs.io/en/latest/reference/datasources/nocloud.html
    """
    metadata = {
        "instance-id": spec.id,
        "local-hostname": spec.host_name,
        "public-keys": [key for _, key in spec.public_keys],
    }
    folder = "/var/lib/cloud/seed/nocloud"
    return (
        BootFile(path=f"{folder}/user-data", content=spec.user_data),
        BootFile(path=f"{folder}/meta-data", content=json.dumps(metadata).encode()),
        BootFile(path="/etc/cloud/cloud.cfg.d/99-simulation.cfg", content=_CLOUD_CONFIG.encode()),
    )


def boots_with(spec: MachineSpec) -> BootPlan:
    """Returns what a machine does at its first boot."""
    return boot_plan(spec.user_data, [key for _, key in spec.public_keys], USER, HOME)
