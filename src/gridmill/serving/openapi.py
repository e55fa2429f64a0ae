"""The OpenAPI document of a service, with an example row."""

from typing import TYPE_CHECKING, Any

from gridmill.domain.serving import ServiceOrder
from gridmill.serving.fields import Field, FieldKind
from gridmill.serving.hosting import Versions
from gridmill.serving.keyed_features import STATUS, VALUES
from gridmill.serving.request import ARROW
from gridmill.serving.served_model import ServedModel

if TYPE_CHECKING:
    from gridmill.online.plan import OnlinePlan

_TYPES: dict[FieldKind, list[str]] = {
    FieldKind.NUMBER: ["number", "null"],
    FieldKind.BOOLEAN: ["boolean", "number", "null"],
    FieldKind.TEXT: ["string", "null"],
}
_ERRORS = {
    "400": "The body is malformed.",
    "401": "The API key is missing or wrong.",
    "413": "The body is too large.",
    "415": "The content type is not supported.",
    "422": "A field is missing or has a wrong type.",
    "429": "Too many requests wait. Retry after the seconds in `Retry-After`.",
    "500": "The model failed for these rows.",
    "503": "The replica stops or is not ready. Retry after the seconds in `Retry-After`.",
    "504": "The model did not answer within the time limit.",
}


def document(order: ServiceOrder, versions: Versions) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the service."""
    model = versions.default.model
    text = {"description": "Ready, or not ready (503)."}
    return {
        "openapi": "3.1.0",
        "info": {"title": order.name, "version": model.label},
        "paths": {
            "/predict": {"post": _predict(model)},
            "/v2": {"get": _plain("Show the server.")},
            "/v2/health/live": {"get": _plain("Check whether the server lives.")},
            "/v2/health/ready": {
                "get": {
                    "summary": "Check whether the server is ready.",
                    "responses": {"200": text, "503": text},
                }
            },
            f"/v2/models/{order.name}": {"get": _plain("Show the inputs and outputs of the model.")},
            f"/v2/models/{order.name}/infer": {"post": _infer(model)},
            "/metrics": {"get": _plain("Show counts and durations in the text format of Prometheus.")},
        },
        "components": {"schemas": {"Row": _row(model), "Error": _ERROR}} | _security(order),
    } | ({"security": [{"bearer": []}, {"key": []}]} if order.api_keys_file else {})


_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error", "code", "request_id"],
    "properties": {
        "error": {"type": "string"},
        "code": {"type": "string"},
        "hint": {"type": "string"},
        "request_id": {"type": "string"},
        "problems": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "row": {"type": ["integer", "null"]},
                    "field": {"type": ["string", "null"]},
                    "problem": {"type": "string"},
                },
            },
        },
    },
}


def _security(order: ServiceOrder) -> dict[str, Any]:
    if not order.api_keys_file:
        return {}
    key = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    return {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}, "key": key}}


def _plain(summary: str) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": "The answer."}, **_errors("401")}}


def _errors(*codes: str) -> dict[str, Any]:
    schema = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {code: {"description": _ERRORS[code], "content": schema} for code in codes}


_SQL: dict[str, dict[str, Any]] = {
    "DOUBLE": {"type": ["number", "null"]},
    "FLOAT": {"type": ["number", "null"]},
    "BOOLEAN": {"type": ["boolean", "null"]},
    "TIMESTAMP": {"type": ["string", "null"], "format": "date-time"},
    "DATE": {"type": ["string", "null"], "format": "date"},
    "VARCHAR": {"type": ["string", "null"]},
    "BLOB": {"type": ["string", "null"]},
}


def _keyed_row(plan: "OnlinePlan") -> dict[str, Any]:
    """Return the schema of a row whose contextual features are computed by key."""
    whole: dict[str, Any] = {"type": ["integer", "null"]}
    properties = {name: dict(_SQL.get(kind, whole)) for name, kind in plan.request.items()}
    for key in plan.entity:
        if key in properties:
            properties[key]["description"] = "Key: the service computes the other features for it."
    for name in plan.computed:
        kind = plan.types.get(name, "DOUBLE")
        text = "Computed by key, unless the row has it."
        properties[name] = {**_SQL.get(kind, whole), "description": text}
    if plan.time is not None:
        text = "The as-of time. The default is the time of the request."
        properties[plan.time] = {**_SQL["TIMESTAMP"], "description": text}
    return {"type": "object", "required": list(plan.request), "properties": properties}


def _row(model: ServedModel) -> dict[str, Any]:
    if model.features is not None:
        return _keyed_row(model.plan)
    return {
        "type": "object",
        "required": [field.name for field in model.reader.fields],
        "properties": {field.name: _field(field) for field in model.reader.fields},
    }


def _field(field: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _TYPES[field.kind]}
    if field.categories:
        schema["description"] = "Known values: " + ", ".join(field.categories[:20])
    return schema


def example_row(model: ServedModel) -> Any:  # noqa: ANN401  an object, or a list of objects
    """Return a row that the model accepts: the first golden row, or a row of zeros and first categories. If
    features are computed by key, it is a row of the basis table."""
    if model.features is not None:
        return model.example or {name: _example_of_sql(kind) for name, kind in model.plan.request.items()}
    if (golden := model.golden_row()) is not None:
        return golden
    row = {field.name: _example(field) for field in model.reader.fields}
    return row if model.card.sequence is None else [row] * model.card.sequence


def _example_of_sql(kind: str) -> Any:  # noqa: ANN401  any JSON
    examples = {"DOUBLE": 0.0, "FLOAT": 0.0, "BOOLEAN": False, "VARCHAR": "text", "BLOB": "bytes"}
    times = {"TIMESTAMP": "2024-01-01T00:00:00Z", "DATE": "2024-01-01"}
    return (examples | times).get(kind, 0)


def _example(field: Field) -> float | bool | str | None:
    if field.kind == FieldKind.TEXT:
        return field.categories[0] if field.categories else None
    return False if field.kind == FieldKind.BOOLEAN else 0.0


_STATUSES = (
    "For each status except `present` the features, each with the numbers of the rows. Left out if all "
    "values are present and the request does not ask for it."
)


_STREAM = {
    "type": "string",
    "contentMediaType": ARROW.decode(),
    "description": "A stream of Apache Arrow, with a column for each field of a row. The answer is a stream "
    "if the header `Accept` of a request with a stream has this type.",
}


def _predict(model: ServedModel) -> dict[str, Any]:
    row: dict[str, Any] = {"$ref": "#/components/schemas/Row"}
    if model.card.sequence is not None and model.features is None:
        row = {"type": "array", "items": row, "minItems": 1}
    example = example_row(model)
    outputs: dict[str, Any] = {name: {} for name in model.columns(model.no_rows)}
    answer: dict[str, Any] = {
        "type": "object",
        "required": ["model", "version", "predictions"],
        "properties": {
            "model": {"type": "string"},
            "version": {"type": "string"},
            "predictions": {"type": "array", "items": {"type": "object", "properties": outputs}},
            "not_finite": {"type": "array", "items": {"type": "integer"}},
        },
    }
    properties: dict[str, Any] = {"rows": {"type": "array", "items": row}}
    body = {"type": "object", "required": ["rows"], "properties": properties}
    version = {"name": "version", "in": "query", "required": False, "schema": {"type": "string"}}
    parameters: list[dict[str, Any]] = [version]
    if model.features is not None:
        properties["as_of"] = {**_SQL["TIMESTAMP"], "description": "The as-of time of rows without a time."}
        answer["properties"]["features"] = {"type": "object", "description": _STATUSES}
        wishes = {"type": "string", "enum": [STATUS, VALUES]}
        parameters.append({"name": "features", "in": "query", "required": False, "schema": wishes})
    return {
        "summary": "Predict rows with named fields.",
        "parameters": parameters,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": body, "example": {"rows": [example]}},
                "application/x-ndjson": {"schema": {"type": "string"}},
                ARROW.decode(): {"schema": _STREAM},
            },
        },
        "responses": {
            "200": {
                "description": "The predictions.",
                "content": {"application/json": {"schema": answer}, ARROW.decode(): {"schema": _STREAM}},
            },
            **_errors(*_ERRORS),
            "404": {"description": "There is no such version."},
        },
    }


def _infer(model: ServedModel) -> dict[str, Any]:
    tensor = {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "datatype": {"type": "string"},
            "data": {"type": "array"},
        },
    }
    body = {
        "type": "object",
        "required": ["inputs"],
        "properties": {"id": {"type": "string"}, "inputs": {"type": "array", "items": tensor}},
    }
    return {
        "summary": "Infer by the Open Inference Protocol v2.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "The output tensors."}, **_errors(*_ERRORS)},
    }
