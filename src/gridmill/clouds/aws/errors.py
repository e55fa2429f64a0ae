"""The table of the error codes of AWS: for each code, the error of Gridmill.

Sources of the codes: "Error codes for the Amazon EC2 API" (errors-overview in the EC2 API Reference),
"Common errors" of Service Quotas, of the Price List Service and of the Security Token Service. EC2 returns
some refusals, such as InsufficientInstanceCapacity, with the HTTP status 500. Therefore the code counts, and
the status counts only for codes that are not in the table.
"""

from collections.abc import Mapping

from gridmill.errors import (
    ConflictError,
    CredentialsError,
    GridmillError,
    NoMachineError,
    NotFoundError,
    QuotaError,
    RefusedError,
    UnavailableError,
)

_NO_MACHINE = (
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientCapacity",
    "InsufficientCapacityOnHost",
    "InsufficientVolumeCapacity",
    "InsufficientFreeAddressesInSubnet",
    "InsufficientAddressCapacity",
    "UnfulfillableCapacity",
    "SpotMaxPriceTooLow",
    "Unsupported",  # the type is not offered in this zone; another zone may have it
)
_QUOTA = (
    "VcpuLimitExceeded",
    "InstanceLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "MaxSpotFleetRequestCountExceeded",
    "SpotInstanceCountExceeded",
    "VolumeLimitExceeded",
    "MaxIOPSLimitExceeded",
    "AddressLimitExceeded",
    "NetworkInterfaceLimitExceeded",
    "PrivateIpAddressLimitExceeded",
    "ResourceLimitExceeded",
    "ResourceCountExceeded",
    "SecurityGroupLimitExceeded",
    "SecurityGroupsPerInstanceLimitExceeded",
    "RulesPerSecurityGroupLimitExceeded",
    "TagLimitExceeded",
    "PendingVerification",  # AWS verifies a new account or a new region for some hours
)
_CREDENTIALS = (
    "AuthFailure",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
    "IncompleteSignature",
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",  # the clock of this machine is wrong by more than 5 minutes
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "NotAuthorized",
    "OptInRequired",
    "Blocked",
)
RIGHTS = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
"""A right is missing. A launch without the right is refused. All other calls are repeated like calls with
invalid credentials, because somebody can restore the right."""
_UNAVAILABLE = (
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "EC2ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "BandwidthLimitExceeded",
    "InternalError",
    "InternalFailure",
    "ServerInternal",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "Unavailable",
    "DependencyTimeoutException",
    "InternalErrorException",
    "ServiceException",
    "InvalidInstanceID.NotLinkable",
    "ConcurrentTagAccess",
)
_CONFLICT = (
    "IdempotentParameterMismatch",
    "IdempotentInstanceTerminated",
    "DependencyViolation",
    "VolumeInUse",
    "IncorrectState",
    "IncorrectInstanceState",
    "InvalidIPAddress.InUse",
    "InvalidGroup.InUse",
    "ResourceInUse",
    "InvalidAMIName.Duplicate",
    "InvalidSnapshot.InUse",
    "InvalidGroup.Duplicate",
    "InvalidPermission.Duplicate",
)
NOT_FOUND = (
    "InvalidInstanceID.NotFound",
    "InvalidInstanceID.Malformed",
    "InvalidVolume.NotFound",
    "InvalidVolumeID.Malformed",
    "InvalidGroup.NotFound",
    "InvalidGroupId.Malformed",
    "InvalidSecurityGroupID.NotFound",
    "InvalidAllocationID.NotFound",
    "InvalidAddressID.NotFound",
    "InvalidAddress.NotFound",
    "InvalidKeyPair.NotFound",
    "InvalidSnapshot.NotFound",
)
"""Something with this id does not exist. A deletion that is answered in this way has succeeded."""

DRY_RUN = "DryRunOperation"
"""The answer to a request with DryRun that would succeed."""
PROTECTED = "OperationNotPermitted"
"""The answer to the termination of a machine with termination protection."""

TABLE: Mapping[str, type[GridmillError]] = {
    **dict.fromkeys(_NO_MACHINE, NoMachineError),
    **dict.fromkeys(_QUOTA, QuotaError),
    **dict.fromkeys(_CREDENTIALS, CredentialsError),
    **dict.fromkeys(RIGHTS, CredentialsError),
    **dict.fromkeys(_UNAVAILABLE, UnavailableError),
    **dict.fromkeys(_CONFLICT, ConflictError),
    **dict.fromkeys(NOT_FOUND, NotFoundError),
    PROTECTED: UnavailableError,
}
"""The class of the error for each code. A code that is not in the table is a RefusedError if its HTTP status
is below 500, and an UnavailableError otherwise."""

_HINTS: Mapping[str, str] = {
    "RequestExpired": "Set the clock of this machine, for example with `timedatectl set-ntp true`.",
    "OptInRequired": "Enable the region in the account settings of AWS, or leave it out of `regions`.",
    "Blocked": "AWS has blocked the account. Contact the support of AWS.",
    "PendingVerification": "AWS verifies the account. Wait some hours, or contact the support of AWS.",
    PROTECTED: "Disable the termination protection of the machine: aws ec2 modify-instance-attribute "
    "--instance-id ID --no-disable-api-termination",
    "InsufficientFreeAddressesInSubnet": "Add a larger subnet to the setting `subnet`.",
    "VPCIdNotSpecified": "The region has no default network. Set `subnet`, or run `aws ec2 "
    "create-default-vpc`.",
}
_MESSAGE_LENGTH = 500  # a server behind the API may answer with a whole page


def class_of(code: str, status: int, *, is_launch: bool = False) -> type[GridmillError]:
    """Return the class of the error for an error code and an HTTP status. `is_launch` means that the
    request starts a machine. An answer without a code is not from AWS but, for example, from a proxy, so that
    it is unknown whether AWS has received the request."""
    if not code:
        return UnavailableError
    if is_launch and code in RIGHTS:
        return RefusedError
    return TABLE.get(code) or (UnavailableError if status >= 500 else RefusedError)


def error_of(code: str, status: int, message: str, place: str, *, is_launch: bool = False) -> GridmillError:
    """Return the error for an error code and an HTTP status, with the provider's message. `place` is the
    request, such as `aws us-east-1 RunInstances`."""
    kind = class_of(code, status, is_launch=is_launch)
    hint = _HINTS.get(code, "")
    if not hint and code in RIGHTS:
        action = place.rpartition(" ")[2]
        hint = f"Allow the action {action} in the IAM policy of the credentials."
    words = " ".join(message.split())[:_MESSAGE_LENGTH]
    return kind(f"AWS answered {code or status}: {words}", hint=hint, place=place)
