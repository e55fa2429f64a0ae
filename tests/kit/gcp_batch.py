"""Clients and requests for tests of the simulated Google Cloud Batch."""

import base64
import json
import time
from typing import Any

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from gridmill.testing.cloud.containers import Image
from gridmill.testing.cloud.gcp_batch.simulation import GcpBatchSimulation

IMAGES = {"shell:1": Image(entry_point=("/bin/sh", "-c"))}
"""An image whose command is a shell script."""
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def assertion(key_file: dict[str, str], **changes: Any) -> str:
    """Returns a signed JWT for a token request, with changed claims."""
    now = int(time.time())
    claims = {
        "iss": key_file["client_email"],
        "aud": key_file["token_uri"],
        "scope": SCOPE,
        "iat": now,
        "exp": now + 3600,
    } | changes
    parts = ({"alg": "RS256", "typ": "JWT", "kid": key_file["private_key_id"]}, claims)
    signed = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
    key = serialization.load_pem_private_key(key_file["private_key"].encode(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return f"{signed}.{_encoded(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def token_answer(cloud: GcpBatchSimulation, given: str) -> httpx.Response:
    """Returns the answer to a token request."""
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": given}
    return httpx.post(cloud.key_file()["token_uri"], data=form, trust_env=False)


def client(cloud: GcpBatchSimulation, location: str = "us-central1") -> httpx.Client:
    """Returns a client of one location."""
    token = token_answer(cloud, assertion(cloud.key_file())).json()["access_token"]
    return httpx.Client(
        base_url=f"{cloud.endpoint_url}/v1/projects/{cloud.project}/locations/{location}",
        headers={"Authorization": f"Bearer {token}"},
        trust_env=False,
    )


def job(
    script: str, *, count: int = 1, spot: bool = False, task: Any = None, policy: Any = None, **more: Any
) -> dict[str, Any]:
    """Returns the body of a request for a job that runs a shell script."""
    runnable = {"container": {"imageUri": "shell:1", "commands": [script]}}
    model = "SPOT" if spot else "STANDARD"
    instance = {"policy": {"provisioningModel": model, "machineType": "e2-standard-4"} | (policy or {})}
    group = {"taskCount": str(count), "taskSpec": {"runnables": [runnable]} | (task or {})}
    return {"taskGroups": [group], "allocationPolicy": {"instances": [instance]}} | more


def create(batch: httpx.Client, body: dict[str, Any], **query: str) -> str:
    """Creates a job, and returns its name."""
    answer = batch.post("/jobs", json=body, params=query)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["name"])


def get(batch: httpx.Client, name: str) -> Any:
    """Returns a job, task or operation by its name."""
    return batch.get(f"{str(batch.base_url).partition('/v1/')[0]}/v1/{name}").json()


def refused(answer: httpx.Response) -> tuple[int, str]:
    """Returns the HTTP status and the name of the error of an answer."""
    return answer.status_code, answer.json()["error"]["status"]
