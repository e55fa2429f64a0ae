"""A simulated machine understands its user data and answers for its metadata as documented."""

import base64
import gzip
import json
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

from gridmill.testing.cloud.cloud_init import BootFile, BootPlan, boot_plan
from gridmill.testing.cloud.metadata_service import TOKEN, TTL, Metadata, answer

KEY = "ssh-ed25519 AAAA me"


def plan(text: str | bytes, *keys: str) -> BootPlan:
    data = text.encode() if isinstance(text, str) else text
    return boot_plan(data, keys, "ubuntu", "/home/ubuntu")


def files(made: BootPlan) -> dict[str, BootFile]:
    return {file.path: file for file in made.files}


def test_a_shell_script_is_run_as_a_file():
    made = plan("#!/bin/sh\ntrue\n")
    [(path, file)] = files(made).items()
    assert (file.content, file.mode, made.commands) == (b"#!/bin/sh\ntrue\n", "0700", (path,))


def test_cloud_config_writes_files_in_all_encodings():
    zipped = base64.b64encode(gzip.compress(b"zip")).decode()
    made = plan(f"""#cloud-config
write_files:
  - {{path: /a, content: plain, permissions: "0600", owner: "ubuntu:ubuntu"}}
  - {{path: /b, content: {base64.b64encode(b"base").decode()}, encoding: b64, append: true}}
  - {{path: /c, content: {zipped}, encoding: gz+b64}}
""")
    found = files(made)
    assert (found["/a"].content, found["/a"].mode, found["/a"].owner) == (b"plain", "0600", "ubuntu:ubuntu")
    assert (found["/b"].content, found["/b"].is_appended) == (b"base", True)
    assert found["/c"].content == b"zip"


def test_commands_are_lists_or_lines_and_keep_their_order():
    made = plan("#cloud-config\nbootcmd: [first]\nruncmd:\n  - [echo, a b]\n  - echo $HOME\n")
    assert (made.early_commands, made.commands) == (("first",), ("echo 'a b'", "echo $HOME"))


def test_keys_are_for_the_user_and_root_only_if_it_is_allowed():
    found = files(plan('#cloud-config\nssh_authorized_keys: ["ssh-rsa BBBB you"]\n', KEY))
    assert found["/home/ubuntu/.ssh/authorized_keys"].content == f"{KEY}\nssh-rsa BBBB you\n".encode()
    assert b'command="echo' in found["/root/.ssh/authorized_keys"].content
    found = files(plan("#cloud-config\ndisable_root: false\n", KEY))
    assert found["/root/.ssh/authorized_keys"].content == f"{KEY}\n".encode()


def test_users_log_in_with_each_of_their_keys():
    made = plan("""#cloud-config
users:
  - default
  - {name: worker, shell: /bin/bash, sudo: "ALL=(ALL) NOPASSWD:ALL", ssh_authorized_keys: [one, two]}
  - {name: other, uid: 2000}
""")
    assert made.logins == (("worker", "one"), ("worker", "two"))
    assert made.problems == ("the key uid of a user of cloud-config",)


def test_host_keys_become_those_of_the_machine():
    config = json.dumps({"ssh_keys": {"ed25519_private": "secret", "ed25519_public": "public"}})
    found = files(plan(f"#cloud-config\n{config}"))
    assert (found["/etc/ssh/ssh_host_ed25519_key"].mode, found["/etc/ssh/ssh_host_ed25519_key"].content) == (
        "0600",
        b"secret\n",
    )
    assert found["/etc/ssh/ssh_host_ed25519_key.pub"].content == b"public\n"


def test_parts_of_a_message_are_all_used():
    message = MIMEMultipart()
    message.attach(MIMEText("#cloud-config\nruncmd: [one]\n", "cloud-config"))
    message.attach(MIMEText("#!/bin/sh\ntwo\n", "x-shellscript"))
    made = plan(gzip.compress(message.as_bytes()))
    assert made.commands == ("one", "/var/lib/cloud/instance/scripts/part-000")


def test_what_is_not_understood_is_told():
    assert plan("#cloud-config\npackages: [htop]\n").problems == ("the key packages of cloud-config",)
    assert plan("hello").problems == ("user data of type unknown",)
    assert "is not YAML" in plan("#cloud-config\na: [\n").problems[0]
    assert plan("").problems == ()


MACHINE = {"instance-id": "i-1", "placement/region": "us-east-1", "placement/availability-zone": "us-east-1a"}


def token(machine: Metadata, seconds: str = "60", now: float = 0.0) -> dict[str, str]:
    status, body = answer(machine, "PUT", "/latest/api/token", {TTL: seconds}, now)
    assert status == 200
    return {TOKEN: body.decode()}


def test_metadata_need_a_token_that_has_not_expired():
    machine = Metadata(items=dict(MACHINE))
    path = "/latest/meta-data/instance-id"
    assert answer(machine, "GET", path, {}, 0.0) == (401, b"")
    assert answer(machine, "GET", path, {TOKEN: "guessed"}, 0.0) == (401, b"")
    got = token(machine)
    assert answer(machine, "GET", path, got, 59.0) == (200, b"i-1")
    assert answer(machine, "GET", path, got, 60.0) == (401, b"")


def test_tokens_are_refused_without_a_valid_time_or_through_a_proxy():
    machine = Metadata()
    for headers in ({}, {TTL: "0"}, {TTL: "21601"}, {TTL: "soon"}):
        assert answer(machine, "PUT", "/latest/api/token", headers, 0.0)[0] == 400
    forwarded = {TTL: "60", "X-Forwarded-For": "10.0.0.1"}
    assert answer(machine, "PUT", "/latest/api/token", forwarded, 0.0)[0] == 403


def test_the_first_version_needs_no_token_where_it_is_allowed():
    machine = Metadata(items=dict(MACHINE), tokens_required=False)
    assert answer(machine, "GET", "/2021-03-23/meta-data/instance-id", {}, 0.0) == (200, b"i-1")


def test_folders_of_metadata_are_listed():
    machine = Metadata(items=dict(MACHINE), user_data=b"data")
    got = token(machine)

    def read(path: str) -> tuple[int, bytes]:
        return answer(machine, "GET", path, got, 1.0)

    assert read("/latest/meta-data/") == (200, b"instance-id\nplacement/")
    assert read("/latest/meta-data/placement/") == (200, b"availability-zone\nregion")
    assert read("/latest/meta-data/spot/instance-action") == (404, b"")
    assert read("/latest/user-data") == (200, b"data")
    document = json.loads(read("/latest/dynamic/instance-identity/document")[1])
    assert (document["instanceId"], document["region"]) == ("i-1", "us-east-1")
    assert answer(None, "GET", "/latest/meta-data/", got, 1.0) == (404, b"")
