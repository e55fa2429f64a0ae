"""The command with which a machine of Lambda Cloud ends itself. A shutdown does not end the rental there.

Any API key of Lambda Cloud can rent and end everything in the account. Therefore a machine gets one only if
the user sets `self_terminate`.
"""

import json

from gridmill.clouds.lambda_cloud.launch import TOKEN

_COMMAND = """python3 - <<'GRIDMILL-PYTHON'
import base64, json, urllib.request
key, url, token = json.loads({values!r})
def ask(path, body=None):
    basic = base64.b64encode((key + ":").encode()).decode()
    headers = {{"Authorization": "Basic " + basic, "Content-Type": "application/json"}}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + "/api/v1" + path, data, headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)["data"]
for one in ask("/instances"):
    tags = {{tag["key"]: tag["value"] for tag in one.get("tags") or ()}}
    if tags.get("{tag}") == token and one["status"] not in ("terminating", "terminated"):
        ask("/instance-operations/terminate", {{"instance_ids": [one["id"]]}})
GRIDMILL-PYTHON
sleep 15
"""
"""The pause keeps machines that end at the same time within the rate that Lambda Cloud permits."""


def end_command(api_key: str, endpoint_url: str, token: str) -> str:
    """Return the shell command with which the machine of a token ends itself."""
    values = json.dumps([api_key, endpoint_url, token[:128]])
    return _COMMAND.format(values=values, tag=TOKEN)
