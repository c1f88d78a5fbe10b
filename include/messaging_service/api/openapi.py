"""The OpenAPI description of the service: its request fields, from the tables of checks, and its answers.

It omits rules that involve several fields. If a request breaks such a rule, the answer names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from messaging_service.api.token_endpoint import TOKEN_PATH
from messaging_service.auth.tokens import CLIENT_CREDENTIALS, JWT_BEARER
from messaging_service.campaigns import fields
from messaging_service.campaigns.listing import LARGEST_PAGE, MEMBERS, ORDERS
from messaging_service.undocumented_names import Names

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
_INTEGERS: Schema = {"type": "array", "items": {"type": "integer"}}
_LANGUAGE: Schema = {"type": "string", "pattern": "^[a-z]{2}$"}
_IDENTIFIERS: Schema = {"type": "array", "items": {"type": ["integer", "string"]}}
_PAIRS: Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["key", "value"],
        "properties": {"key": {}, "value": {}},
        "additionalProperties": False,
    },
}
_BY_CHECK: Mapping[fields.FieldCheck, Schema] = {
    fields.is_text: _TEXT,
    fields.is_object: _OBJECT,
    fields.is_flag: {"type": "integer", "enum": [0, 1]},
    fields.is_boolean: {"enum": [0, 1, False, True]},
    fields.is_int32: {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    fields.is_url: {"type": "string", "pattern": "^https?://"},
    fields.is_link: {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9+.-]*:."},
    fields.is_date: {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
    fields.is_time: {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
    fields.is_time_zone: {"type": "string", "minLength": 1},
    fields.is_language: _LANGUAGE,
}
# Fields that have a check of their own.
_BY_KEY: Mapping[str, Schema] = {
    "title": {"type": "string", "pattern": "\\S"},
    "payload_add": _PAIRS,
    "languages_list": {"type": "array", "items": _LANGUAGE},
    "push_text_languages": {"type": "object", "additionalProperties": _TEXT},
    "push_title_languages": {"type": "object", "additionalProperties": _TEXT},
    "url_languages": {"type": "object", "additionalProperties": _TEXT},
    "sms": {"type": "object", "properties": {"from": _TEXT, "text": _TEXT}},
    "segment_ids": _INTEGERS,
    "device_ids": _INTEGERS,
    "device_tokens": _IDENTIFIERS,
    "device_uuids": _IDENTIFIERS,
    "external_ids": {"type": "array", "items": _TEXT},
    "locations": _INTEGERS,
    "send_type": {"type": "integer", "enum": [0, 1, 2]},
    "send_days": _INTEGERS,
    "dwell_time": {"type": "integer", "minimum": 1, "maximum": 30},
    "execute_id": {"type": ["integer", "string"]},
    "target": _IDENTIFIERS,
    "target_with_params": {"type": "object", "additionalProperties": _OBJECT},
}
_LIST_PATH = "/api/external/list/campaign"
_ON_REQUEST = "Only as an injected fault."
_REFUSAL: Schema = {
    "type": "object",
    "required": ["success", "code", "message"],
    "properties": {
        "success": {"const": False},
        "code": {"type": "integer", "minimum": 400, "maximum": 599},
        "message": _TEXT,
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": _TEXT, "message": _TEXT},
            },
        },
    },
}
_ACCEPTED: Schema = {
    "type": "object",
    "required": ["success", "code", "model"],
    "properties": {
        "success": {"const": True},
        "code": {"const": 200},
        "model": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
    },
}
_LISTED: Schema = {
    "type": "object",
    "required": ["success", "code", "data"],
    "properties": {
        "success": {"const": True},
        "code": {"const": 200},
        "data": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}},
    },
}
_LIST: Schema = {
    "type": "object",
    "properties": {
        "apptoken": _TEXT,
        "limit": {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE},
        "offset": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        "select": {"type": "array", "maxItems": len(MEMBERS), "items": {"enum": list(MEMBERS)}},
        "order": {"type": "array", "maxItems": 1, "items": {"enum": list(ORDERS)}},
    },
}
_TOKEN: Schema = {
    "type": "object",
    "required": ["access_token", "token_type", "expires_in"],
    "properties": {
        "access_token": _TEXT,
        "token_type": {"const": "Bearer"},
        "expires_in": {"type": "integer", "minimum": 1, "maximum": 86_400},
    },
    "additionalProperties": False,
}
_TOKEN_REFUSAL: Schema = {
    "type": "object",
    "required": ["error", "error_description"],
    "properties": {"error": _TEXT, "error_description": _TEXT},
}
_FILLED: Schema = {"type": "string", "minLength": 1}
_GRANTS: Schema = {
    "anyOf": [
        {
            "type": "object",
            "required": ["grant_type", "client_id", "client_secret"],
            "properties": {
                "grant_type": {"const": CLIENT_CREDENTIALS},
                "client_id": _FILLED,
                "client_secret": _FILLED,
                "lifetime": {"type": "integer", "minimum": 1},
            },
        },
        {
            "type": "object",
            "required": ["grant_type", "assertion"],
            "properties": {"grant_type": {"const": JWT_BEARER}, "assertion": _FILLED},
        },
    ]
}
_SCHEMAS = {
    "Accepted": _ACCEPTED,
    "Listed": _LISTED,
    "Refusal": _REFUSAL,
    "Token": _TOKEN,
    "TokenRefusal": _TOKEN_REFUSAL,
}


def describe(app: FastAPI, names: Names) -> None:
    """Serve this description at /openapi.json, with the spellings in ``names``."""
    kept: Schema = {}

    def openapi() -> Schema:
        if not kept:
            kept.update(_described(app, names))
        return kept

    app.openapi = openapi  # type: ignore[method-assign]


def _described(app: FastAPI, names: Names) -> Schema:
    description = get_openapi(
        title=app.title,
        version="1",
        description=__doc__,
        routes=[route for route in app.routes if getattr(route, "include_in_schema", False)],
    )
    components = description.setdefault("components", {})
    components.setdefault("schemas", {}).update(_SCHEMAS)
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    for path, operations in description["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if path == TOKEN_PATH:
                _describe_token(operation)
            elif path.startswith("/api/external/"):
                _describe_external(operation, path, names)
            else:
                operation["responses"]["4XX"] = _answer("Refused.", "Refusal")
    return description


def _describe_token(operation: Schema) -> None:
    types = ("application/json", "application/x-www-form-urlencoded")
    contents = {name: {"schema": _GRANTS} for name in types}
    operation["requestBody"] = {"required": True, "content": contents}
    refused = {code: _answer("No token is issued.", "TokenRefusal") for code in ("400", "401")}
    operation["responses"] = {"200": _answer("A token.", "Token"), **refused, **_faults("TokenRefusal")}


def _describe_external(operation: Schema, path: str, names: Names) -> None:
    content = {"schema": _body(path, names), "example": _example(path, names)}
    operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    # A bearer token, or apptoken in the body.
    operation["security"] = [{"bearer": []}, {}]
    refused = {code: _answer("Refused.", "Refusal") for code in ("400", "401", "404", "415")}
    answered = _answer("A page.", "Listed") if path == _LIST_PATH else _answer("Accepted.", "Accepted")
    operation["responses"] = {"200": answered, **refused, **_faults("Refusal")}


def _faults(name: str) -> Schema:
    page = {"description": _ON_REQUEST, "content": {"text/html": {"schema": _TEXT}}}
    on_request = {code: _answer(_ON_REQUEST, name) for code in ("429", "500")}
    return {"403": _answer("Forbidden.", name), **on_request, "502": page}


def _answer(description: str, name: str) -> Schema:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {"description": description, "content": content}


def _body(path: str, names: Names) -> Schema:
    if path == _LIST_PATH:
        return _LIST
    if path.endswith("/create/segment"):
        properties = {"apptoken": _TEXT, "title": _BY_KEY["title"], "conditions": _OBJECT}
        return {"type": "object", "required": ["title", "conditions"], "properties": properties}
    executes = path.endswith("/execute/campaign")
    table = fields.EXECUTION if executes else fields.CAMPAIGN
    properties = _properties(table, names)
    entry = {"type": "object", "properties": {**_properties(fields.ENTRY, names), "webhook": _OBJECT}}
    kinds = (names["message_ios_push"], names["message_android_push"], "3", "6", "7", "8", "9")
    properties["messages"] = {"type": "object", "properties": dict.fromkeys(kinds, entry)}
    required = [fields.wire_name("execute_id", names)] if executes else ["title"]
    return {"type": "object", "required": required, "properties": properties}


def _example(path: str, names: Names) -> Schema:
    if path == _LIST_PATH:
        return {"limit": 100, "offset": 0, "select": ["id", "title"], "order": ["id DESC"]}
    if path.endswith("/create/segment"):
        condition = ["tags_attribute", "=", "tier", ["value", "=", "gold"]]
        return {"title": "Gold customers", "conditions": {"operator": "AND", "0": condition}}
    if path.endswith("/execute/campaign"):
        name = fields.wire_name
        return {name("execute_id", names): 1, name("target", names): [1], name("target_by", names): "id"}
    return {
        "title": "Spring sale",
        "push_title": "Hello",
        "push_text": "It is spring.",
        "web_push": 1,
        "broadcast": 1,
    }


def _properties(table: Mapping[str, fields.FieldCheck], names: Names) -> Schema:
    return {
        fields.wire_name(key, names): _BY_KEY.get(key) or _BY_CHECK.get(check, {})
        for key, check in table.items()
    }
