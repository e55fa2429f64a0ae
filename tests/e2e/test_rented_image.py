"""An image of machines is built on a machine of EC2, against the simulated EC2 with real machines.

What an image contains is tested on the machine of the build.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.domain.lease import LeaseState
from gridmill.domain.machine_image import ImageOrder, ImageState
from gridmill.errors import ConflictError, InputError
from gridmill.testing.cloud.ec2.simulation import simulated_ec2
from gridmill.testing.cloud.namespace_machines import NamespaceMachines, why_no_machines
from gridmill.version import __version__
from tests.e2e.test_rented_ec2 import Account

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_machines()), reason=why_no_machines() or "there are machines"),
]
ORDER = ImageOrder(name="base-1", site="aws", region="us-east-1", instance_type="t3.micro")
LOOK = """
for one in /etc/ssh/ssh_host_* /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys \\
    /var/lib/gridmill/watch /var/lib/gridmill/farm /var/lib/cloud/instance /var/lib/cloud/instances; do
    [ -e "$one" ] && echo "left: $one"
done
[ -s /etc/machine-id ] && echo "left: machine-id"
"$PYTHON" -P -c 'from gridmill.version import __version__; print(__version__)'
sleep 6; cat /run/gridmill/state
"""


@pytest.fixture
def aws() -> Iterator[Account]:
    host = NamespaceMachines()
    with (
        tempfile.TemporaryDirectory(prefix="gmi", ignore_cleanup_errors=True) as name,
        simulated_ec2(host=host) as ec2,
    ):
        (Path(name) / "home").mkdir()
        account = Account(Path(name), ec2, host)
        yield account
        for one in account.node.grid.leases().items:
            account.node.grid.stop_lease(one.lease.id)
        account.close()


def on_machine(aws: Account, script: str) -> str:
    """Runs a script on the only machine, also if its SSH server accepts no key any more."""
    [machine] = aws.host._machines.values()
    words = ("nsenter", "-t", str(machine.init), "--all", "sh", "-c", script)
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def parts(aws: Account) -> list[str]:
    """Returns the images and snapshots that exist."""
    return [one for one in aws.ec2.leftovers() if one.startswith(("ami-", "snap-"))]


def test_an_image_is_built_and_kept_and_its_machine_is_returned(aws: Account) -> None:
    aws.ec2.faults.image_seconds = 12.0
    lease = aws.node.grid.build_image(ORDER).lease.id
    with pytest.raises(ConflictError, match="is being built"):
        aws.node.grid.build_image(ORDER)
    aws.wait(lambda: parts(aws), "the image is requested")
    looked = on_machine(aws, LOOK).splitlines()
    # the watcher still counts the time
    assert looked[0] == __version__, looked
    assert looked[1].startswith("used="), looked
    aws.wait(lambda: aws.node.grid.lease(lease).lease.image_id, "the image is finished")
    done = aws.node.grid.lease(lease).lease
    assert (done.state, done.release_asked is not None) == (LeaseState.RELEASING, True)
    aws.returned()
    [image] = aws.node.grid.images()
    assert (image.name, image.id, image.state) == ("base-1", done.image_id, ImageState.AVAILABLE)
    assert image.is_current
    with pytest.raises(ConflictError, match="exists in us-east-1"):
        aws.node.grid.build_image(ORDER)
    aws.wait(lambda: len(aws.ec2.leftovers()) == 2, "only the image and its snapshot are left")
    aws.node.grid.remove_image("base-1")
    assert not parts(aws)


def test_a_build_that_is_stopped_leaves_nothing(aws: Account) -> None:
    aws.ec2.faults.image_seconds = 3.0
    lease = aws.node.grid.build_image(ORDER).lease.id
    aws.wait(lambda: parts(aws), "the image is requested")
    aws.node.grid.stop_lease(lease)
    aws.returned()
    aws.wait(lambda: not aws.ec2.leftovers(), "nothing is left")
    assert not aws.node.grid.images()


def test_a_name_that_is_not_valid_is_refused(aws: Account) -> None:
    with pytest.raises(InputError, match="is not a name of an image"):
        aws.node.grid.build_image(ImageOrder(name="a b", site="aws"))
