"""Requests to a simulated Compute Engine, as a program of a user sends them."""

import base64
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gridmill.testing.cloud.gce.simulation import GceSimulation
from tests.kit.wire import Wire

ZONE = "us-central1-a"
IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts"


def signed(key: dict[str, str], claims: dict[str, Any]) -> str:
    """A JWT with claims, signed by the key of a service account as RFC 7515 says."""
    private = load_pem_private_key(key["private_key"].encode(), None)
    assert isinstance(private, RSAPrivateKey)
    header = {"alg": "RS256", "typ": "JWT", "kid": key["private_key_id"]}
    text = ".".join(_encoded(json.dumps(one).encode()) for one in (header, claims))
    return f"{text}.{_encoded(private.sign(text.encode(), PKCS1v15(), SHA256()))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Gce:
    """A client with the credentials of one service account."""

    def __init__(self, cloud: GceSimulation, email: str = "") -> None:
        self.cloud = cloud
        headers = {"Authorization": f"Bearer {cloud.access_token(email)}"}
        self.root = Wire(cloud.endpoint_url, headers)
        self.wire = Wire(f"{cloud.endpoint_url}/compute/v1/projects/{cloud.project}/", headers)

    def get(self, path: str, **query: Any) -> Any:
        """Reads a resource of the project."""
        return self.wire.ok("GET", path, **query)

    def request(self, name: str = "worker", zone: str = ZONE, **changes: Any) -> dict[str, Any]:
        """The body of a request for a small instance."""
        kind = changes.pop("kind", "e2-standard-2")
        return {
            "name": name,
            "machineType": f"zones/{zone}/machineTypes/{kind}",
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}],
            "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{}]}],
            **changes,
        }

    def insert(self, name: str = "worker", zone: str = ZONE, request_id: str = "", **changes: Any) -> Any:
        """Begins to create an instance; the operation at this moment."""
        query = {"requestId": request_id} if request_id else {}
        body = self.request(name, zone, **changes)
        operation = self.wire.ok("POST", f"zones/{zone}/instances", body, **query)
        return self.operation(operation)

    def operation(self, operation: Any) -> Any:
        """An operation at this moment."""
        path = operation["selfLink"].partition(f"/projects/{self.cloud.project}/")[2]
        return self.get(path)

    def instance(self, name: str = "worker", zone: str = ZONE) -> Any:
        """What Compute Engine says of an instance."""
        return self.get(f"zones/{zone}/instances/{name}")

    def delete(self, name: str = "worker", zone: str = ZONE) -> Any:
        """Begins to delete an instance; the operation at this moment."""
        return self.operation(self.wire.ok("DELETE", f"zones/{zone}/instances/{name}"))

    def refused(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, str]:
        """The status and the reason of a request that must be refused."""
        status, answer = self.wire.send(method, path, body, **query)
        assert status >= 400, answer
        return status, answer["error"]["errors"][0]["reason"]

    def refused_insert(self, **changes: Any) -> tuple[int, str]:
        """The status and the reason of a launch that must be refused."""
        zone = changes.get("zone", ZONE)
        return self.refused("POST", f"zones/{zone}/instances", self.request(**changes))

    def close(self) -> None:
        """Closes the connections."""
        self.root.close()
        self.wire.close()
