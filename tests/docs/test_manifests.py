"""The manifest for KubeRay is YAML of the shape that its operator takes (RayCluster, ray.io/v1)."""

import re
from importlib.metadata import version

import pytest
import yaml

from tests.kit.markdown import ROOT

[TEXT] = re.findall(
    r"^```yaml title=[^\n]*\n(.*?)^```$", (ROOT / "docs/how-to/ray.md").read_text(), re.M | re.S
)
CLUSTER = yaml.safe_load(TEXT)
TEMPLATES = [
    CLUSTER["spec"]["headGroupSpec"]["template"],
    *(group["template"] for group in CLUSTER["spec"]["workerGroupSpecs"]),
]
GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


def test_it_is_a_cluster_of_the_ray_that_is_used_here():
    assert (CLUSTER["apiVersion"], CLUSTER["kind"]) == ("ray.io/v1", "RayCluster")
    assert CLUSTER["metadata"]["name"]
    assert set(CLUSTER["spec"]) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    pytest.importorskip("ray")
    assert CLUSTER["spec"]["rayVersion"] == version("ray")


def test_its_groups_have_the_fields_that_the_operator_knows():
    """An unknown field is refused by the API server; parameters of `ray start` are strings."""
    assert set(CLUSTER["spec"]["headGroupSpec"]) <= {"rayStartParams", "template", "serviceType"}
    groups = CLUSTER["spec"]["workerGroupSpecs"]
    for group in groups:
        assert set(group) <= GROUP
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in (CLUSTER["spec"]["headGroupSpec"], *groups):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


@pytest.mark.parametrize("template", TEMPLATES)
def test_all_its_pods_mount_the_storage_root(template):
    spec = template["spec"]
    volumes = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"]}
    for container in spec["containers"]:
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounts) <= set(volumes)
        [root] = (one["value"] for one in container["env"] if one["name"] == "GRIDMILL_ROOT")
        assert any(root.startswith(path + "/") for path in mounts.values())
        assert {"cpu", "memory"} <= set(container["resources"]["limits"])
