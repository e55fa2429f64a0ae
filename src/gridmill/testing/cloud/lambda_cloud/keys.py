"""SSH keys.

Source: https://docs-api.lambda.ai/api/cloud#listSSHKeys, #addSSHKey and #deleteSSHKey
"""

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from gridmill.testing.cloud.lambda_cloud.call import Call
from gridmill.testing.cloud.lambda_cloud.records import SshKey
from gridmill.testing.cloud.lambda_cloud.refusal import invalid


def list_keys(call: Call) -> list[dict[str, Any]]:
    """Lists the SSH keys of the account."""
    return [_shape(one) for one in call.world.keys.all(call.as_of) if one.visible_from <= call.now]


def add_key(call: Call) -> dict[str, Any]:
    """Adds an SSH key. Without a public key, a new key pair is made, and the answer has its private key."""
    call.allow_only("name", "public_key")
    name = call.text("name", longest=64)
    if not name:
        raise invalid("name is empty.")
    private = ""
    public = call.text("public_key", longest=4096, default="")
    if "public_key" not in call.body:
        private, public = _new_pair()
    if len(public.split()) < 2:
        raise invalid("public_key is not an SSH public key.")
    key = SshKey(
        id=call.world.new_id(),
        name=name,
        public_key=public.strip(),
        visible_from=call.now + call.world.faults.invisible(),
    )
    call.world.keys.put(key.id, key, call.now)
    return _shape(key) | ({"private_key": private} if private else {})


def delete_key(call: Call) -> dict[str, Any]:
    """Deletes an SSH key. Running instances keep it."""
    key = call.world.keys.get(call.subject)
    if key is None:
        raise invalid("The SSH key does not exist.")
    call.world.keys.put(key.id, None, call.now)
    return {}


def _shape(key: SshKey) -> dict[str, Any]:
    return {"id": key.id, "name": key.name, "public_key": key.public_key}


def _new_pair() -> tuple[str, str]:
    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    return text, private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
