import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.kit.google_api import PROJECT, GoogleApi, refusal, settings

from gridmill.clouds.gcp.account import quotas_of
from gridmill.clouds.gcp.cloud import GcpCloud
from gridmill.clouds.gcp.policy import ACT_AS, COMPUTE, OWN_POLICY, SERVICE_ACCOUNT, role, self_end_role
from gridmill.clouds.gcp.self_end import end_command

BASE = f"/compute/v1/projects/{PROJECT}"
RIGHTS = f"POST /v1/projects/{PROJECT}:testIamPermissions"
ACCOUNT = "end@my-project.iam.gserviceaccount.com"
OF_ACCOUNT = f"POST /v1/projects/-/serviceAccounts/{ACCOUNT}:testIamPermissions"


def _quota(metric, limit, usage=0):
    return {"metric": metric, "limit": limit, "usage": usage}


def _api(**answers):
    region = {"name": "us-central1", "quotas": [_quota("NVIDIA_L4_GPUS", 1, 1), _quota("CPUS", 24)]}
    zone = {"name": "us-central1-a", "region": "r/us-central1"}
    return GoogleApi(
        {
            RIGHTS: {"permissions": list(COMPUTE + SERVICE_ACCOUNT)},
            OF_ACCOUNT: {"permissions": [ACT_AS]},
            f"GET {BASE}/zones": {"items": [zone, {"name": "us-east1-b", "region": "r/us-east1"}]},
            f"GET {BASE}": {"quotas": [_quota("GPUS_ALL_REGIONS", 0)]},
            f"GET {BASE}/regions": {"items": [region, {**region, "name": "us-east1"}]},
            **answers,
        }
    )


def _check(api, **changes):
    cloud = GcpCloud(settings(**changes), transport=api.transport)
    try:
        return cloud.check_account("us-central1")
    finally:
        cloud.close()


def test_an_account_has_its_project_and_the_quotas_of_the_regions():
    check = _check(_api())
    assert (check.account, check.missing_rights) == (PROJECT, ())
    quotas = {one.name: one for one in check.quotas}
    assert {one.region for one in check.quotas} == {"us-central1"}
    assert (quotas["L4 GPUs, on demand"].limit, quotas["L4 GPUs, on demand"].used) == (1, 1)
    assert quotas["L4 GPUs, on demand"].types == ("g2-",)
    assert quotas["CPUS, on demand"].unit == "vCPUs"
    everywhere = quotas["all GPUs in all regions, on demand"]
    assert everywhere.limit == 0
    assert "a2-highgpu-1g".startswith(everywhere.types)
    assert "n1-standard-4+1xnvidia-tesla-t4".startswith(everywhere.types)
    assert not "n1-standard-4".startswith(everywhere.types)


def test_missing_rights_are_named():
    api = _api(**{RIGHTS: {"permissions": [one for one in COMPUTE if one != "compute.instances.delete"]}})
    assert _check(api).missing_rights == ("compute.instances.delete",)
    assert len(api.body(RIGHTS)["permissions"]) <= 100
    assert _check(_api(**{RIGHTS: {}})).quotas == ()


def test_the_rights_to_set_the_policies_of_machines_are_checked():
    given = {"service_accounts": (ACCOUNT,), "machine_role": "projects/my-project/roles/gridmill_machine"}
    check = _check(_api(), **given)
    assert check.missing_rights == OWN_POLICY
    assert "can delete only itself" in check.notes[0]
    assert "setting `machine_role`" in _check(_api(), service_accounts=(ACCOUNT,)).notes[0]
    assert _check(_api()).notes == ()
    answer = {"permissions": list(COMPUTE + SERVICE_ACCOUNT + OWN_POLICY)}
    assert _check(_api(**{RIGHTS: answer}), **given).missing_rights == ()


def test_the_right_to_use_the_service_account_of_the_machines_is_checked():
    assert _check(_api(), service_accounts=(ACCOUNT,)).missing_rights == ()
    assert _check(_api(**{OF_ACCOUNT: {}}), service_accounts=(ACCOUNT,)).missing_rights == (ACT_AS,)
    unknown = _api(**{OF_ACCOUNT: refusal(404, "notFound")})
    missing = _check(unknown, service_accounts=(ACCOUNT,)).missing_rights
    assert "does not exist" in missing[0]


def test_rights_that_were_found_are_not_checked_again_with_each_reading_of_the_quotas():
    api = _api()
    cloud = GcpCloud(settings(), transport=api.transport)
    for _ in range(3):
        cloud.check_account("us-central1")
    assert api.calls.count(RIGHTS) == 1
    cloud.close()


@pytest.mark.parametrize(("preemptible", "limit"), [(4.0, 4.0), (0.0, 1.0), (None, 1.0)])
def test_spot_machines_use_the_usual_quota_if_there_is_none_for_them(preemptible, limit):
    quotas = {"NVIDIA_T4_GPUS": (1.0, 0.0), "CPUS": (24.0, 2.0), "PREEMPTIBLE_CPUS": (0.0, 0.0)}
    if preemptible is not None:
        quotas["PREEMPTIBLE_NVIDIA_T4_GPUS"] = (preemptible, 0.0)
    found = {(one.name, one.spot): one for one in quotas_of("r", quotas, {})}
    assert found["T4 GPUs, spot", True].limit == limit
    assert found["T4 GPUs, on demand", False].limit == 1.0
    assert found["CPUS, spot", True].limit == 24.0


def test_the_documented_roles_have_exactly_the_needed_permissions():
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "rent-from-google.md").read_text()
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    assert role() in blocks
    assert self_end_role() in blocks


def _fake_curl(folder: Path) -> None:
    """Write a curl that answers like the metadata server, and records the deletion."""
    program = folder / "curl"
    program.write_text(
        "#!/bin/sh\n"
        'for one in "$@"; do last=$one; done\n'
        "case $last in\n"
        """*/token) echo '{"access_token":"ya29.secret","expires_in":3599,"token_type":"Bearer"}' ;;\n"""
        "*/instance/zone) echo projects/123/zones/us-central1-a ;;\n"
        "*/project-id) echo my-project ;;\n"
        "*/instance/name) echo gridmill-x ;;\n"
        f'*) cat > "{folder}/header"; echo "$@" > "{folder}/call" ;;\n'
        "esac\n"
    )
    program.chmod(0o755)


def test_a_machine_deletes_itself_and_shows_its_token_to_no_process(tmp_path):
    _fake_curl(tmp_path)
    command = end_command(has_service_account=True)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], env=path, check=True, timeout=30)
    call = (tmp_path / "call").read_text()
    url = "https://compute.googleapis.com/compute/v1/projects/my-project/zones/us-central1-a/instances/gridmill-x"
    assert "-X DELETE" in call
    assert call.strip().endswith(url)
    assert "ya29" not in call
    assert (tmp_path / "header").read_text() == 'header = "Authorization: Bearer ya29.secret"\n'


def test_a_machine_without_a_service_account_does_nothing_until_the_provider_ends_it():
    ran = subprocess.run(
        ["sh", "-c", end_command(has_service_account=False)], capture_output=True, text=True, check=True
    )
    assert "Google Cloud deletes this machine" in ran.stderr
