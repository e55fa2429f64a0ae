import ast
import json
from pathlib import Path

import gridmill.clouds.aws as package
from gridmill.clouds.aws.account import QUOTAS, quotas_of
from gridmill.clouds.aws.policy import INDIRECT, PROBES, policy

SERVICES = {"service-quotas": "servicequotas"}


def _instance(name, cores, lifecycle=None):
    described = {"InstanceType": name, "CpuOptions": {"CoreCount": cores, "ThreadsPerCore": 2}}
    return {**described, "InstanceLifecycle": lifecycle} if lifecycle else described


def test_quotas_are_apart_for_families_and_for_spot_machines():
    listed = [{"QuotaCode": code, "Value": 64.0} for code in QUOTAS] + [
        {"QuotaCode": "L-OTHER", "Value": 1.0}
    ]
    running = [
        _instance("g5.xlarge", 2),
        _instance("gr6.4xlarge", 8),
        _instance("p5.48xlarge", 96),
        _instance("m5.large", 1),
        _instance("g5.xlarge", 2, "spot"),
        _instance("p4d.24xlarge", 48, "spot"),
        _instance("trn1.2xlarge", 4),
        _instance("inf2.xlarge", 2),
    ]
    used = {(quota.name, quota.spot): quota.used for quota in quotas_of("us-east-1", listed, running)}
    assert used == {
        ("G and VT, on demand", False): 20,
        ("P, on demand", False): 192,
        ("standard, on demand", False): 2,
        ("G and VT, spot", True): 4,
        ("P4, P3 and P2, spot", True): 96,
        ("P5, spot", True): 0,
        ("standard, spot", True): 0,
    }


def test_a_quota_that_the_account_does_not_have_is_not_shown():
    assert quotas_of("us-east-1", [], []) == ()


def _called_actions() -> set[str]:
    """Return the rights for all requests in the source, found in the syntax tree."""
    folder = Path(str(package.__file__)).parent
    rights = set()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            words = [
                one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            actions = [word for word in words if word[:1].isupper() and word.isalpha()]
            if name in ("call", "pages"):
                rights.add(f"{SERVICES.get(words[0], words[0])}:{actions[0]}" if actions else "")
            elif name in ("call_for_launch", "_ignoring_missing", "_paged"):
                rights.add(f"ec2:{actions[0]}")
    return rights - {""}


def test_the_policy_has_exactly_the_actions_that_the_client_calls():
    called = _called_actions()
    assert len(called) > 20
    assert {probe.right for probe in PROBES} == called
    statements = policy()["Statement"]
    allowed = {action for one in statements for action in one["Action"]}
    assert allowed == called | set(INDIRECT)


def test_only_what_has_gridmills_tag_may_be_ended_or_deleted():
    for one in policy()["Statement"]:
        destructive = [
            action for action in one["Action"] if action.split(":")[1].startswith(("Del", "Term", "Rel"))
        ]
        if destructive and one["Resource"] == "*":
            assert one["Condition"] == {"Null": {"aws:ResourceTag/gridmill-owner": "false"}}
        elif destructive:
            assert all(resource.endswith("0" * 17) for resource in one["Resource"])


def test_every_probe_that_could_change_something_is_a_dry_run():
    for probe in PROBES:
        if probe.service == "ec2":
            assert probe.arguments["DryRun"] is True
        else:
            assert probe.action.startswith(("Get", "List"))


def test_the_documented_policy_is_the_policy():
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "rent-a-machine.md").read_text()
    documented = page.split("```json\n")[1].split("```")[0]
    assert json.loads(documented) == policy()
