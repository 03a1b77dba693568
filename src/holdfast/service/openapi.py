"""The OpenAPI document, made from the route table and nothing else."""

from collections.abc import Sequence

import msgspec

from holdfast import __version__
from holdfast.service.failures import ErrorReply
from holdfast.service.routes import JSON, NoReply, Route

REF = "#/components/schemas/{name}"
ERROR = {"$ref": REF.format(name="ErrorReply")}

ALWAYS = (400, 403, 421, 500, 503)
"""What any route may answer: a request that cannot be read or was not meant for us, a fault of ours, no room."""

_MEANINGS = {
    400: "The request cannot be read.",
    401: "A key is missing or not valid.",
    403: "The key does not allow this, or a page of another origin asks.",
    404: "There is no such thing.",
    409: "It stands against what is there, or the service was not started for it.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The service is not known under that name.",
    422: "The body does not fit.",
    500: "A fault of the service.",
    503: "The store cannot be used, or too much is asked at once.",
}

Json = dict[str, object]


def openapi(routes: Sequence[Route]) -> Json:
    replies = tuple(one.reply for one in routes if one.reply is not NoReply)
    requests = tuple(one.request for one in routes)
    _, parts = msgspec.json.schema_components(
        (*replies, *requests, ErrorReply), ref_template=REF, schema_hook=_any_json
    )
    paths: dict[str, Json] = {}
    for one in routes:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, parts)
    bodies = {_name(one.request): one for one in routes if has_body(one)}
    parts = {name: _without_path(part, bodies[name]) if name in bodies else part for name, part in parts.items()}
    wanted = {_name(ErrorReply), *map(_name, replies), *bodies}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": "Cache state, controls and figures."},
        "paths": paths,
        "components": {
            "schemas": _reachable(wanted, parts),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def has_body(one: Route) -> bool:
    return one.method != "GET" and bool(one.other_names)


def statuses_of(one: Route) -> tuple[int, ...]:
    """The failures that a route may answer with."""
    keyed = () if one.rule == "open" else (401,)
    bodied = () if one.method == "GET" else (413, 415, one.unfit_status)
    return tuple(sorted({*ALWAYS, *keyed, *bodied, *one.refusals}))


def _operation(one: Route, parts: dict[str, Json]) -> Json:
    schema: Json = {"type": "string"}
    if one.reply is not NoReply:
        schema = {"$ref": REF.format(name=_name(one.reply))}
    content = {one.content_type if one.reply is NoReply else JSON: {"schema": schema}}
    responses: Json = {
        str(status): {"description": "As asked.", **({"content": content} if status != 204 else {})}
        for status in one.successes
    }
    for status in statuses_of(one):
        responses[str(status)] = {"description": _MEANINGS[status], "content": {JSON: {"schema": ERROR}}}
    made: Json = {
        "operationId": operation_id(one),
        "summary": one.summary,
        "parameters": _parameters(one, parts),
        "responses": responses,
        # Without a key where none is needed yet: a service on this machine before its first key.
        "security": [] if one.rule == "open" else [{"key": []}, *([{}] if one.keyless else [])],
    }
    if has_body(one):
        body = {"schema": {"$ref": REF.format(name=_name(one.request))}}
        made["requestBody"] = {"required": one.needs_body, "content": {JSON: body}}
    return made


def operation_id(one: Route) -> str:
    words = one.path.replace("{", "").replace("}", "").replace("/", " ").split()
    return "_".join((one.method.lower(), *words))


def _parameters(one: Route, parts: dict[str, Json]) -> list[Json]:
    described = parts[_name(one.request)]
    properties = described.get("properties")
    assert isinstance(properties, dict)
    required = described.get("required")
    assert isinstance(required, list | tuple)
    told: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in one.path_names
    ]
    if one.method != "GET":
        return told
    for name in one.other_names:
        told.append({"name": name, "in": "query", "required": name in required, "schema": _said(properties[name])})
    return told


def _said(schema: object) -> object:
    """A query has no null: what is not said is left out."""
    if not isinstance(schema, dict) or "anyOf" not in schema:
        return schema
    kept = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    return {**kept[0], **rest} if len(kept) == 1 else {**rest, "anyOf": kept}


def _without_path(described: Json, one: Route) -> Json:
    """What the path says is not said again in the body."""
    properties, required = described["properties"], described["required"]
    assert isinstance(properties, dict)
    assert isinstance(required, list | tuple)
    kept = {name: schema for name, schema in properties.items() if name not in one.path_names}
    return {**described, "properties": kept, "required": [name for name in required if name in kept]}


def _reachable(wanted: set[str], parts: dict[str, Json]) -> dict[str, Json]:
    """The named schemas and those that they name in turn."""
    found: dict[str, Json] = {}
    left = sorted(wanted)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = parts[name]
            text = msgspec.json.encode(parts[name]).decode()
            left += [other for other in parts if f'"{REF.format(name=other)}"' in text]
    return dict(sorted(found.items()))


def _any_json(kind: type) -> Json:
    if kind is object:
        return {"description": "Any JSON."}
    raise NotImplementedError


def _name(kind: type[msgspec.Struct]) -> str:
    return kind.__name__
