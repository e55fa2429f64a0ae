"""When a job runs, by how the jobs that it needs have ended."""

from enum import StrEnum


class When(StrEnum):
    """`success`: once all that it needs has succeeded. `failure`: once all that it needs, and all before
    that, has ended, if one of these jobs has failed. `always`: once all of these have ended, however."""

    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


REMARKS = {When.SUCCESS: "", When.FAILURE: "runs only after a failure", When.ALWAYS: "runs in any case"}
"""What a plan says of such a job."""
