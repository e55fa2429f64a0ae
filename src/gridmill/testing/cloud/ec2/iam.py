"""Identity and access management: roles, instance profiles, and what the policies of a user allow.

A role is only stored: the simulation gives no credentials to a machine that has one. Sources:
https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html,
https://docs.aws.amazon.com/IAM/latest/APIReference/API_CreateRole.html and
https://docs.aws.amazon.com/IAM/latest/APIReference/API_CreateInstanceProfile.html
"""

import json
import re
from typing import Any
from urllib.parse import quote

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.ec2.call import Call
from gridmill.testing.cloud.ec2.records import InstanceProfile, Role
from gridmill.testing.cloud.ec2.refusal import RefusalError, not_simulated
from gridmill.testing.cloud.ec2.users import arn_of, is_denied
from gridmill.testing.cloud.ec2.wire import moment

_NAME = re.compile(r"[\w+=,.@-]+", re.ASCII)
_LONGEST_PROFILE, _LONGEST_ROLE = 128, 64


def simulate_principal_policy(call: Call) -> dict[str, Any]:
    """Returns for each action whether the policies of a user allow it."""
    call.allow_only("PolicySourceArn", "ActionNames", "ResourceArns", "MaxItems", "Marker", "ContextEntries")
    users = {arn_of(one): one for one in call.world.users.by_key.values()}
    wanted = call.get("PolicySourceArn")
    if wanted not in users:
        raise _no_entity(f"The user {wanted[:200]} cannot be found.")
    return {
        "EvaluationResults": [
            {
                "EvalActionName": action,
                "EvalResourceName": "*",
                "EvalDecision": "implicitDeny" if is_denied(users[wanted], action) else "allowed",
                "MatchedStatements": [],
                "MissingContextValues": [],
            }
            for action in call.get("ActionNames", ())
        ],
        "IsTruncated": False,
    }


# roles


def create_role(call: Call) -> dict[str, Any]:
    """Makes a role.

    Source: https://docs.aws.amazon.com/IAM/latest/APIReference/API_CreateRole.html
    """
    call.allow_only("RoleName", "AssumeRolePolicyDocument")
    name, trust = _checked(call.get("RoleName"), _LONGEST_ROLE), call.get("AssumeRolePolicyDocument")
    _check_document(trust)
    if name in call.world.roles:
        raise _exists(f"Role with name {name} already exists.")
    role = Role(name=name, id=_new_id(call, "AROA"), trust=trust, created_at=call.now)
    call.world.roles[name] = role
    return {"Role": _role_shape(role)}


def get_role(call: Call) -> dict[str, Any]:
    """Returns a role.

    Source: https://docs.aws.amazon.com/IAM/latest/APIReference/API_GetRole.html
    """
    call.allow_only("RoleName")
    return {"Role": _role_shape(_role(call))}


def attach_role_policy(call: Call) -> dict[str, Any]:
    """Attaches a managed policy of AWS to a role. The call can be repeated.

    Source: https://docs.aws.amazon.com/IAM/latest/APIReference/API_AttachRolePolicy.html
    """
    call.allow_only("RoleName", "PolicyArn")
    role, arn = _role(call), call.get("PolicyArn")
    if not arn.startswith("arn:aws:iam::aws:policy/"):
        raise not_simulated("managed policies of the account")
    call.world.roles[role.name] = replace(role, attached=tuple(dict.fromkeys((*role.attached, arn))))
    return {}


def put_role_policy(call: Call) -> dict[str, Any]:
    """Stores a policy in a role, or replaces the one that has the same name.

    Source: https://docs.aws.amazon.com/IAM/latest/APIReference/API_PutRolePolicy.html
    """
    call.allow_only("RoleName", "PolicyName", "PolicyDocument")
    role, document = _role(call), call.get("PolicyDocument")
    _check_document(document)
    inline = dict(role.inline) | {call.get("PolicyName"): document}
    call.world.roles[role.name] = replace(role, inline=tuple(inline.items()))
    return {}


def _role(call: Call) -> Role:
    name = call.get("RoleName")
    role = call.world.roles.get(name)
    if role is None:
        raise _no_entity(f"The role with name {name[:_LONGEST_ROLE]} cannot be found.")
    return role


def _role_shape(role: Role) -> dict[str, Any]:
    return {
        "Path": "/",
        "RoleName": role.name,
        "RoleId": role.id,
        "Arn": role.arn,
        "CreateDate": moment(role.created_at),
        "AssumeRolePolicyDocument": quote(role.trust, safe=""),
    }


# instance profiles


def create_instance_profile(call: Call) -> dict[str, Any]:
    """Makes an instance profile without a role.

    Source: https://docs.aws.amazon.com/IAM/latest/APIReference/API_CreateInstanceProfile.html
    """
    call.allow_only("InstanceProfileName")
    name = _checked(call.get("InstanceProfileName"), _LONGEST_PROFILE)
    if name in call.world.profiles:
        raise _exists(f"Instance Profile {name} already exists.")
    profile = InstanceProfile(name=name, id=_new_id(call, "AIPA"), created_at=call.now)
    call.world.profiles[name] = profile
    return {"InstanceProfile": _profile_shape(call, profile)}


def get_instance_profile(call: Call) -> dict[str, Any]:
    """Returns an instance profile with its role.

    Source: https://docs.aws.amazon.com/IAM/latest/APIReference/API_GetInstanceProfile.html
    """
    call.allow_only("InstanceProfileName")
    return {"InstanceProfile": _profile_shape(call, _profile(call))}


def add_role_to_instance_profile(call: Call) -> dict[str, Any]:
    """Adds the only role that an instance profile can have.

    Source: https://docs.aws.amazon.com/IAM/latest/APIReference/API_AddRoleToInstanceProfile.html
    """
    call.allow_only("InstanceProfileName", "RoleName")
    profile, role = _profile(call), _role(call)
    if profile.role:
        raise RefusalError(
            "LimitExceeded", "Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1", 409
        )
    call.world.profiles[profile.name] = replace(profile, role=role.name)
    return {}


def launched_profile(call: Call) -> str:
    """Returns the ARN of the instance profile that a launch names, or an empty text. Raises RefusalError if
    there is no such profile.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_IamInstanceProfileSpecification.html
    """
    given = call.get("IamInstanceProfile", {})
    wanted = given.get("Arn") or given.get("Name")
    if not wanted:
        return ""
    for one in call.world.profiles.values():
        if wanted in (one.arn, one.name):
            return one.arn
    kind = "Arn" if given.get("Arn") else "Name"
    raise RefusalError(
        "InvalidParameterValue",
        f"Value ({wanted[:200]}) for parameter iamInstanceProfile.{kind.lower()} is invalid. Invalid IAM "
        f"Instance Profile {'ARN' if kind == 'Arn' else 'name'}",
    )


def _profile(call: Call) -> InstanceProfile:
    name = call.get("InstanceProfileName")
    profile = call.world.profiles.get(name)
    if profile is None:
        raise _no_entity(f"Instance Profile {name[:_LONGEST_PROFILE]} cannot be found.")
    return profile


def _profile_shape(call: Call, profile: InstanceProfile) -> dict[str, Any]:
    return {
        "Path": "/",
        "InstanceProfileName": profile.name,
        "InstanceProfileId": profile.id,
        "Arn": profile.arn,
        "CreateDate": moment(profile.created_at),
        "Roles": [_role_shape(call.world.roles[profile.role])] if profile.role else [],
    }


def _new_id(call: Call, prefix: str) -> str:
    return f"{prefix}{call.world.random.getrandbits(68):017X}"


def _checked(name: str, longest: int) -> str:
    if len(name) > longest or not _NAME.fullmatch(name):
        raise RefusalError("ValidationError", f"The specified value for {name[:longest]} is invalid.")
    return name


def _check_document(text: str) -> None:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict) or "Statement" not in document:
        raise RefusalError("MalformedPolicyDocument", "This policy contains invalid Json")


def _exists(message: str) -> RefusalError:
    return RefusalError("EntityAlreadyExists", message, 409)


def _no_entity(message: str) -> RefusalError:
    return RefusalError("NoSuchEntity", message, 404)
