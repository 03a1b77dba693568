"""Generates the OpenAPI document from the route table."""

from collections.abc import Sequence

import msgspec

from holdfast import __version__
from holdfast.service.http.routes import JSON, ErrorResponse, NonJsonResponse, Route

REF = "#/components/schemas/{name}"
ERROR_SCHEMA = {"$ref": REF.format(name=ErrorResponse.__name__)}

COMMON_STATUSES = (400, 403, 421, 500, 503)
"""Error statuses that every route can return."""

_MEANINGS = {
    400: "The request is malformed.",
    401: "The key is missing or invalid.",
    403: "The key does not allow this, or the request is cross-origin.",
    404: "Not found.",
    409: "Conflict with the current state, or the service was started without this feature.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "Unknown host name.",
    422: "The body does not match the schema.",
    429: "The address sent too many wrong keys, or has too many connections.",
    500: "Internal error.",
    503: "The store is unavailable, or there are too many requests.",
}

Json = dict[str, object]


def make_openapi(routes: Sequence[Route]) -> Json:
    replies = tuple(route.response for route in routes if route.response is not NonJsonResponse)
    requests = tuple(route.request for route in routes)
    _, schemas = msgspec.json.schema_components(
        (*replies, *requests, ErrorResponse), ref_template=REF, schema_hook=_any_json
    )
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    bodies = {_name(route.request): route for route in routes if has_body(route)}
    schemas = {
        name: _without_path(schema, bodies[name]) if name in bodies else schema for name, schema in schemas.items()
    }
    wanted = {_name(ErrorResponse), *map(_name, replies), *bodies}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": "Cache state, controls and analytics."},
        "paths": paths,
        "components": {
            "schemas": _reachable(wanted, schemas),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def has_body(route: Route) -> bool:
    return route.method != "GET" and bool(route.other_names)


def list_error_statuses(route: Route) -> tuple[int, ...]:
    """All error statuses of a route."""
    key_statuses = () if route.rule == "open" else (401, 429)
    body_statuses = () if route.method == "GET" else (413, 415, route.invalid_body_status)
    return tuple(sorted({*COMMON_STATUSES, *key_statuses, *body_statuses, *route.error_statuses}))


def _operation(route: Route, schemas: dict[str, Json]) -> Json:
    schema: Json = {"type": "string"}
    if route.response is not NonJsonResponse:
        schema = {"$ref": REF.format(name=_name(route.response))}
    content = {route.content_type if route.response is NonJsonResponse else JSON: {"schema": schema}}
    responses: Json = {
        str(status): {"description": "Success.", **({"content": content} if status != 204 else {})}
        for status in route.success_statuses
    }
    for status in list_error_statuses(route):
        responses[str(status)] = {"description": _MEANINGS[status], "content": {JSON: {"schema": ERROR_SCHEMA}}}
    operation: Json = {
        "operationId": make_operation_id(route),
        "summary": route.summary,
        "parameters": _parameters(route, schemas),
        "responses": responses,
        # The empty alternative means that no key is required before the first one is created.
        "security": [] if route.rule == "open" else [{"key": []}, *([{}] if route.keyless else [])],
    }
    if has_body(route):
        body = {"schema": {"$ref": REF.format(name=_name(route.request))}}
        operation["requestBody"] = {"required": route.needs_body, "content": {JSON: body}}
    return operation


def make_operation_id(route: Route) -> str:
    words = route.path.replace("{", "").replace("}", "").replace("/", " ").split()
    return "_".join((route.method.lower(), *words))


def _parameters(route: Route, schemas: dict[str, Json]) -> list[Json]:
    schema = schemas[_name(route.request)]
    properties = schema.get("properties")
    assert isinstance(properties, dict)
    required = schema.get("required")
    assert isinstance(required, list | tuple)
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in route.path_names
    ]
    if route.method != "GET":
        return parameters
    for name in route.other_names:
        parameters.append(
            {"name": name, "in": "query", "required": name in required, "schema": _without_null(properties[name])}
        )
    return parameters


def _without_null(schema: object) -> object:
    """A query parameter cannot be null; it is omitted instead."""
    if not isinstance(schema, dict) or "anyOf" not in schema:
        return schema
    variants = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    return {**variants[0], **rest} if len(variants) == 1 else {**rest, "anyOf": variants}


def _without_path(schema: Json, route: Route) -> Json:
    """The body schema without the fields that come from the path."""
    properties, required = schema["properties"], schema["required"]
    assert isinstance(properties, dict)
    assert isinstance(required, list | tuple)
    remaining = {name: schema for name, schema in properties.items() if name not in route.path_names}
    return {**schema, "properties": remaining, "required": [name for name in required if name in remaining]}


def _reachable(wanted: set[str], schemas: dict[str, Json]) -> dict[str, Json]:
    """The wanted schemas and all schemas they refer to."""
    reached: dict[str, Json] = {}
    pending = sorted(wanted)
    while pending:
        name = pending.pop()
        if name not in reached:
            reached[name] = schemas[name]
            text = msgspec.json.encode(schemas[name]).decode()
            pending += [other for other in schemas if f'"{REF.format(name=other)}"' in text]
    return dict(sorted(reached.items()))


def _any_json(kind: type) -> Json:
    if kind is object:
        return {"description": "Any JSON."}
    raise NotImplementedError


def _name(kind: type[msgspec.Struct]) -> str:
    return kind.__name__
