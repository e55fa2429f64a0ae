"""The error answers of the simulated services."""

from gridmill.errors import InputError


class RefusalError(InputError):
    """A request is answered with an error. `aws_code` is the error code of AWS and `status` the HTTP status.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
    """

    def __init__(self, aws_code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.aws_code = aws_code
        self.status = status


def missing(parameter: str) -> RefusalError:
    """Returns the error for a request without a required parameter."""
    return RefusalError("MissingParameter", f"The request must contain the parameter {parameter}")


def invalid(value: object, parameter: str) -> RefusalError:
    """Returns the error for a parameter with a value that is not allowed."""
    return RefusalError("InvalidParameterValue", f"Invalid value '{value}' for {parameter}.")


def not_simulated(what: str) -> RefusalError:
    """Returns the error for a request that AWS allows and the simulation does not implement. The simulation
    never ignores such a part of a request, because a test would then pass for the wrong reason."""
    return RefusalError("Simulation.NotImplemented", f"The simulated EC2 does not implement {what}.", 501)
