"""A service on Ray over two hosts, whose number of pods follows from its rate."""

import re
from collections.abc import Iterator

import pytest

from gridmill.testing.hosts import why_no_hosts
from tests.e2e.test_ray_hosts import Lab, Load, pods, rain
from tests.kit.machines import two_hosts
from tests.kit.ray import needs_ray
from tests.unit.jobs.training.test_imported import weighted

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    needs_ray,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]
RESOURCE = ("configure", "resource", "servers", "--type", "service", "--site", "lab", "--cpus", "1")
RESOURCE = (*RESOURCE, "--memory", "1GiB", "--model", "rain/model@1", "--rate")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with two_hosts() as (net, shared):
        lab = Lab(net, shared)
        yield lab
        lab.clear()


def test_a_service_gets_the_pods_that_its_rate_needs_and_no_request_fails_while_they_change(lab: Lab) -> None:
    model, signature = lab.shared / "net.onnx", lab.shared / "signature.yaml"
    model.write_bytes(weighted())
    signature.write_text("features: [temp, wind]\nlabel: rain\n")
    lab.gridmill("import", "model", "rain", str(model), "--signature", str(signature))
    one = lab.gridmill(*RESOURCE, "1")
    assert "1 replica, 0.1 CPUs" in one
    refused = lab.gridmill(*RESOURCE, "1000000", check=False)
    found = re.search(r"it can serve ([\d,]+) requests/s in up to 2 pods", " ".join(refused.split()))
    assert found, refused
    most = int(found[1].replace(",", ""))
    low, high = str(most // 5), str(most * 3 // 4)
    assert "2 pods, each with" in (shown := lab.gridmill(*RESOURCE, high))
    assert "2 pods, each on a node of its own: resource servers can serve" in shown

    start = ("--model", "rain/model", "--resource", "servers", "--host", "0.0.0.0", "--accept-open")
    lab.gridmill("start", "service", "rain", *start, "--rate", low)
    [first] = pods(lab)
    with Load(lab, rain(lab)["service"]["port"]) as load:
        lab.gridmill("update", "service", "rain", "--rate", high)
        assert pods(lab) == sorted([lab.alpha.address, lab.beta.address])
        load.go_on()
        too_high = lab.gridmill("update", "service", "rain", "--rate", str(most * 6 // 5), check=False)
        assert "1 more node with 1 CPU" in " ".join(too_high.split())
        lab.gridmill("update", "service", "rain", "--rate", low)
        lab.wait(lambda: len(rain(lab)["service"]["further_pods"]) == 0, "the other pod has ended")
        load.go_on()
        assert pods(lab) == [first]
    print(load.summary())
    assert load.failed == [], load.summary()
    service = rain(lab)["service"]
    assert (service["size"]["pods"], service["settings"]["pods"]) == (1, None)
    lab.gridmill("stop", "service", "rain")
