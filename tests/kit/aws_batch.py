"""Clients and requests for tests of the simulated AWS Batch."""

from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from gridmill.testing.cloud.aws_batch.simulation import AwsBatchSimulation
from gridmill.testing.cloud.containers import Image

IMAGES = {"shell:1": Image(entry_point=("/bin/sh", "-c"))}
"""An image whose command is a shell script."""


def client(simulation: AwsBatchSimulation, service: str = "batch", region: str = "us-east-1") -> Any:
    """Returns a client that does not retry."""
    return boto3.client(
        service,
        region_name=region,
        endpoint_url=simulation.endpoint_url,
        aws_access_key_id=simulation.access_key,
        aws_secret_access_key=simulation.secret_key,
        config=Config(retries={"total_max_attempts": 1}),
    )


def needs(vcpus: str = "1", memory: int = 512, gpus: int = 0) -> list[dict[str, str]]:
    """Returns resource requirements."""
    found = [{"type": "VCPU", "value": vcpus}, {"type": "MEMORY", "value": str(memory)}]
    return found + ([{"type": "GPU", "value": str(gpus)}] if gpus else [])


def define(batch: Any, script: str, name: str = "shell", **more: Any) -> str:
    """Registers a job definition that runs a shell script, and returns its ARN."""
    container = {"image": "shell:1", "command": [script], "resourceRequirements": needs()}
    made = batch.register_job_definition(
        jobDefinitionName=name, type="container", containerProperties=container, **more
    )
    return str(made["jobDefinitionArn"])


def submit(batch: Any, script: str = "", queue: str = "queue", **more: Any) -> str:
    """Submits a job of the definition `shell`, and returns its id. The job runs the given script."""
    wanted = {"jobName": "one", "jobQueue": queue, "jobDefinition": "shell"} | more
    if script:
        wanted["containerOverrides"] = {"command": [script]} | more.get("containerOverrides", {})
    return str(batch.submit_job(**wanted)["jobId"])


def detail(batch: Any, job_id: str) -> Any:
    """Returns a job as DescribeJobs shows it."""
    [found] = batch.describe_jobs(jobs=[job_id])["jobs"]
    return found


def refused(call: Any, **arguments: Any) -> tuple[str, int]:
    """Returns the code and the HTTP status of the error of a request."""
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]
    raise AssertionError("the request succeeded")
