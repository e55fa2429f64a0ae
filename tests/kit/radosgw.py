"""Ceph's object store, for what it enforces: signatures, and that they expire. A monitor, one disk in memory
and the gateway, on this machine alone; Debian has them."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx

from tests.kit.ports import free_port

HOW_TO_GET_IT = "needs Ceph: apt-get install --no-install-recommends radosgw ceph-mon ceph-osd ceph-common"
KEYS = {
    "AWS_ACCESS_KEY_ID": "TESTACCESS",
    "AWS_SECRET_ACCESS_KEY": "TESTSECRET",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_PROGRAMS = ("radosgw", "ceph-mon", "ceph-osd", "ceph", "ceph-authtool", "monmaptool", "radosgw-admin")
_DEADLINE_SECONDS = 300.0
_CLUSTER = "11111111-2222-3333-4444-555555555555"
_DISK = "99999999-2222-3333-4444-555555555555"
_SETTINGS = """[global]
fsid = {cluster}
mon host = v1:127.0.0.1:{mon}
mon initial members = a
public network = 127.0.0.0/8
cluster network = 127.0.0.0/8
keyring = {folder}/keyring
log file = {folder}/$name.log
admin socket = {folder}/$name.asok
pid file = {folder}/$name.pid
run dir = {folder}
crash dir = {folder}
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 1000
osd pool default pg autoscale mode = off
auth allow insecure global id reclaim = false
setuser match path = {folder}
[mon.a]
mon data = {folder}/mon
mon addr = 127.0.0.1:{mon}
[osd.0]
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 536870912
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{gateway}
rgw data = {folder}/rgw
rgw enable apis = s3
rgw num rados handles = 1
rgw thread pool size = 32
"""
_ALL = ("--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *")


def is_there() -> bool:
    """Whether it is installed."""
    return all(shutil.which(program) for program in _PROGRAMS)


@contextmanager
def radosgw() -> Iterator[str]:
    """The endpoint of one that has just started. Takes some 15 seconds."""
    folder = Path(tempfile.mkdtemp(prefix="gmrgw"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield _Ceph(folder, stack).endpoint


class _Ceph:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack, self._keys = folder, stack, folder / "keyring"
        mon, gateway = free_port(), free_port()
        self.endpoint = f"http://127.0.0.1:{gateway}"
        settings = _SETTINGS.format(folder=folder, cluster=_CLUSTER, mon=mon, gateway=gateway)
        (folder / "ceph.conf").write_text(settings)
        for made in ("mon", "osd", "rgw"):
            (folder / made).mkdir()
        self._make_keys()
        self._monitor(mon)
        self._disk()
        self._gateway()

    def _run(self, program: str, *words: str, check: bool = True) -> "subprocess.CompletedProcess[bytes]":
        env = os.environ | {"CEPH_CONF": str(self._folder / "ceph.conf")}
        return subprocess.run((program, *words), env=env, capture_output=True, check=check)

    def _start(self, program: str, *words: str) -> None:
        with (self._folder / f"{program}.out").open("wb") as out:
            conf = str(self._folder / "ceph.conf")
            started = subprocess.Popen((program, "-c", conf, "-f", *words), stdout=out, stderr=out)
        self._stack.callback(started.wait)
        self._stack.callback(started.kill)

    def _ceph(self, *words: str, check: bool = True) -> bytes:
        asked = self._run("ceph", "-n", "client.admin", "-k", str(self._keys), *words, check=check)
        return asked.stdout + asked.stderr if asked.returncode == 0 else b""

    def _make_keys(self) -> None:
        tool = partial(self._run, "ceph-authtool", str(self._keys))
        tool("--create-keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        tool("--gen-key", "-n", "client.admin", *_ALL)
        tool("--gen-key", "-n", "osd.0", "--cap", "mon", "allow profile osd", "--cap", "osd", "allow *")
        tool("--gen-key", "-n", "client.rgw", "--cap", "mon", "allow rw", "--cap", "osd", "allow rwx")

    def _monitor(self, port: int) -> None:
        plan = str(self._folder / "monmap")
        self._run("monmaptool", "--create", "--addv", "a", f"[v1:127.0.0.1:{port}]", "--fsid", _CLUSTER, plan)
        keys = ("--monmap", plan, "--keyring", str(self._keys))
        self._run("ceph-mon", "--mkfs", "-i", "a", *keys)
        self._start("ceph-mon", "-i", "a")
        _wait(lambda: bool(self._ceph("--connect-timeout", "5", "mon", "stat", check=False)), "the monitor")

    def _disk(self) -> None:
        self._ceph("osd", "new", _DISK, "0")
        self._ceph("auth", "add", "osd.0", "-i", str(self._keys))
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", _DISK, "--osd-objectstore", "memstore")
        shutil.copy(self._keys, self._folder / "osd/keyring")
        self._ceph("osd", "crush", "add", "osd.0", "1.0", "root=default")
        self._start("ceph-osd", "-i", "0")
        _wait(lambda: b"1 up" in self._ceph("osd", "stat", check=False), "the disk")

    def _gateway(self) -> None:
        self._ceph("auth", "add", "client.rgw", "-i", str(self._keys))
        who = ("-n", "client.rgw", "-k", str(self._keys))
        self._start("radosgw", *who)
        _wait(self._answers, "the gateway")
        named = ("--uid=test", "--display-name=test")
        keys = (f"--access-key={KEYS['AWS_ACCESS_KEY_ID']}", f"--secret-key={KEYS['AWS_SECRET_ACCESS_KEY']}")
        self._run("radosgw-admin", *who, "user", "create", *named, *keys)

    def _answers(self) -> bool:
        try:
            return httpx.get(self.endpoint, timeout=30).status_code < 500
        except httpx.HTTPError:
            return False


def _wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"Ceph: {what} does not start")
        time.sleep(0.1)
