"""Clients of a simulated EC2, as programs of users have them, and a request that launches an instance."""

from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from gridmill.testing.cloud.ec2.simulation import EC2Simulation

UBUNTU = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-*"


def client(
    simulation: EC2Simulation,
    service: str = "ec2",
    region: str = "us-east-1",
    *,
    attempts: int = 1,
    **keys: str,
) -> Any:
    """A client of boto3, which sends a request once unless more attempts are asked for."""
    return boto3.client(
        service,
        region_name=region,
        endpoint_url=simulation.endpoint_url,
        config=Config(retries={"total_max_attempts": attempts, "mode": "standard"}),
        **{
            "aws_access_key_id": simulation.access_key,
            "aws_secret_access_key": simulation.secret_key,
            **keys,
        },
    )


def launch(ec2: Any, **changes: Any) -> dict[str, Any]:
    """Parameters of RunInstances for one small machine."""
    [image] = ec2.describe_images(Filters=[{"Name": "name", "Values": [UBUNTU]}])["Images"]
    return {"ImageId": image["ImageId"], "InstanceType": "t3.micro", "MinCount": 1, "MaxCount": 1, **changes}


def run(ec2: Any, **changes: Any) -> str:
    """Launches a machine; its id."""
    [instance] = ec2.run_instances(**launch(ec2, **changes))["Instances"]
    return str(instance["InstanceId"])


def instance(ec2: Any, instance_id: str) -> dict[str, Any]:
    """What EC2 says of one machine."""
    [reservation] = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
    [found] = reservation["Instances"]
    return dict(found)


def code(error: ClientError) -> tuple[str, int]:
    """The code and the HTTP status of an error."""
    return error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]


def refused(call: Any, *args: Any, **parameters: Any) -> str:
    """The code of the error that a call must end with."""
    try:
        call(*args, **parameters)
    except ClientError as error:
        return code(error)[0]
    raise AssertionError("the call was not refused")
