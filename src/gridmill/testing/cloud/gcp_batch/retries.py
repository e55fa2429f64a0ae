"""Decides whether Batch retries a failed task.

Source: https://cloud.google.com/batch/docs/automate-task-retries
"""

from collections.abc import Sequence

from gridmill.testing.cloud.gcp_batch.records import Policy


def is_retried(policies: Sequence[Policy], exit_code: int, retries: int, max_retries: int) -> bool:
    """Returns whether a task is retried that has ended with an exit code other than 0. The first policy that
    names the exit code decides. A failure that no policy names gets the opposite of their action, and is
    retried if there are no policies. `retries` is the number of retries so far."""
    if retries >= max_retries:
        return False
    for policy in policies:
        if exit_code in policy.exit_codes:
            return policy.retries
    return not any(policy.retries for policy in policies)
