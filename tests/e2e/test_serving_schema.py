"""What schemathesis sends to a service by its own OpenAPI document: the service never fails, and each answer
is as the document says."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation import GenerationMode

from tests.kit.served_models import linear_model, order_of
from tests.kit.services import Service

pytestmark = pytest.mark.e2e
EXAMPLES = 25
load_all_checks()
ASKED = [
    CHECKS.get_one(name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
    )
]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schema")
    with Service(folder / "s", order_of(linear_model(folder / "m"), max_body_bytes=1 << 20)) as service:
        yield service
        assert service.report().restarts == 0, service.log()


def statuses_of(operation, mode, url: str) -> set[int]:
    """Send requests of this kind, check each answer, and return the statuses of the answers."""
    statuses: set[int] = set()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def ask(case):
        answer = case.call(base_url=url, timeout=60)
        statuses.add(answer.status_code)
        case.validate_response(answer, checks=ASKED)

    ask()
    return statuses


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_answers_are_as_the_document_says(service, mode):
    document = schemathesis.openapi.from_dict(service.call("/openapi.json")[1])
    url = f"http://127.0.0.1:{service.report().port}"
    statuses = {
        operation.path: statuses_of(operation, mode, url)
        for operation in (found.ok() for found in document.get_all_operations())
        if mode is GenerationMode.POSITIVE or operation.method == "post"
    }
    assert statuses.keys() >= {"/predict", f"/v2/models/{service.report().name}/infer"}
    assert statuses["/predict"] & ({200} if mode is GenerationMode.POSITIVE else {400, 422})
