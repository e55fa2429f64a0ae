"""Decides whether AWS Batch retries a failed attempt.

Source: https://docs.aws.amazon.com/batch/latest/userguide/job_retries.html and
https://docs.aws.amazon.com/batch/latest/APIReference/API_EvaluateOnExit.html
"""

from gridmill.testing.cloud.aws_batch.records import Attempt, Retry, Rule


def is_retried(retry: Retry, attempts: tuple[Attempt, ...]) -> bool:
    """Returns whether a job is retried after its last attempt has failed. The first rule that matches
    decides. If no rule matches, the job is retried. `attempts` are all attempts so far."""
    if len(attempts) >= retry.attempts:
        return False
    for rule in retry.rules:
        if _matches(rule, attempts[-1]):
            return rule.action.upper() == "RETRY"
    return True


def _matches(rule: Rule, attempt: Attempt) -> bool:
    exit_code = "" if attempt.exit_code is None else str(attempt.exit_code)
    return (
        _fits(rule.on_status_reason, attempt.status_reason)
        and _fits(rule.on_reason, attempt.reason)
        and _fits(rule.on_exit_code, exit_code)
    )


def _fits(pattern: str, text: str) -> bool:
    # Patterns are not sensitive to case, and only an asterisk at the end has a meaning.
    pattern, text = pattern.lower(), text.lower()
    if pattern.endswith("*"):
        return text.startswith(pattern[:-1])
    return not pattern or text == pattern
