"""The scopes of client IDs (section 2.2)."""

from __future__ import annotations

import pytest

CREATE = "/api/external/create/campaign"
EXECUTE = "/api/external/execute/campaign"
EVERY = ["create", "batch_create", "update", "delete", "list", "info", "execute"]
BODY = {"title": "t", "push_text": "x", "android_push": 1, "device_ids": [1]}


def add(service, *options):
    return service.command("client-ids", "add", "--name", "scoped", "--type", "secret", *options)


def headers_of(service, client):
    token = service.token(client_id=client["client_id"], client_secret=client["client_secret"])
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.rule("2.2/scopes_default", side="service")
def test_a_client_id_has_every_scope_by_default(service_process):
    assert add(service_process)["scopes"] == EVERY


@pytest.mark.rule("2.2/scopes", side="service")
@pytest.mark.parametrize(("path", "lacking"), [(CREATE, "create"), (EXECUTE, "execute")])
def test_a_request_without_its_scope_is_answered_403(service_process, path, lacking):
    others = [option for name in EVERY if name != lacking for option in ("--scope", name)]
    headers = headers_of(service_process, add(service_process, *others))
    answer = service_process.post(path, json=BODY, headers=headers)
    assert (answer.status_code, answer.json()["code"], answer.json()["success"]) == (403, 403, False)
    assert lacking in answer.json()["message"]


def test_one_scope_is_enough_for_its_operation(service_process):
    headers = headers_of(service_process, add(service_process, "--scope", "create"))
    assert service_process.post(CREATE, json=BODY, headers=headers).status_code == 200


def test_scopes_that_are_taken_away_bind_the_tokens_there_are(service_process):
    client = add(service_process)
    headers = headers_of(service_process, client)
    changed = service_process.command("client-ids", "set-scopes", client["client_id"], "--scope", "list")
    assert changed["scopes"] == ["list"]
    assert service_process.post(CREATE, json=BODY, headers=headers).status_code == 403


def test_an_app_token_has_every_scope(service_process):
    body = {**BODY, "apptoken": service_process.app_token}
    assert service_process.post(CREATE, json=body).status_code == 200


def test_an_app_token_beside_a_bearer_token_adds_no_scope(service_process):
    headers = headers_of(service_process, add(service_process, "--scope", "list"))
    body = {**BODY, "apptoken": service_process.app_token}
    assert service_process.post(CREATE, json=body, headers=headers).status_code == 403


def test_an_unknown_scope_is_refused_with_the_list(service_process):
    options = ("--name", "x", "--type", "secret", "--scope", "everything")
    assert "create" in service_process.command("client-ids", "add", *options, expect=1)["error"]


def test_scopes_of_an_unknown_client_id_are_refused(service_process):
    assert "no such" in service_process.command("client-ids", "set-scopes", "nobody", expect=1)["error"]


def test_client_ids_are_listed_without_secrets(service_process):
    client = add(service_process, "--scope", "info")
    listed = service_process.command("client-ids", "list")["client_ids"]
    [shown] = [item for item in listed if item["client_id"] == client["client_id"]]
    assert shown["scopes"] == ["info"]
    assert client["client_secret"] not in str(listed)
