"""The description at /openapi.json, checked against a real service."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from ..waiting import PATIENCE

CREATE = "/api/external/create/campaign"
EXECUTE = "/api/external/execute/campaign"
LIST = "/api/external/list/campaign"
TOKEN = "/api/oauth/token"
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
# A description cannot express rules that involve several fields, so a body that matches it may still get 400.
# The time to generate data and to answer is not part of the description.
CONFIGURATION = f"""
request-timeout = {PATIENCE}
suppress-health-check = ["too_slow"]

[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 401, 403, 404]

# Every pair of some sixty optional members would take most of a minute.
[[operations]]
include-path-regex = "/campaign$"
phases.coverage.enabled = false
"""


def described(service):
    return requests.get(f"{service.base_url}/openapi.json", timeout=PATIENCE).json()


@pytest.mark.proof
def test_schemathesis_finds_nothing_that_is_described_wrongly(service_process, tmp_path):
    if not SCHEMATHESIS.exists():
        pytest.skip("needs schemathesis: pip install -c constraints.txt schemathesis")
    description = described(service_process)
    for path in (CREATE, EXECUTE, LIST, "/api/external/create/segment"):
        body = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        # With made-up tokens, every request would end at 401.
        body["schema"]["properties"]["apptoken"] = {"const": service_process.app_token}
    (tmp_path / "openapi.json").write_text(json.dumps(description))
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    done = subprocess.run(
        [
            *(SCHEMATHESIS, "--config-file", "schemathesis.toml", "run", "openapi.json"),
            *("--url", service_process.base_url, "-H", f"Authorization: Bearer {service_process.token()}"),
            *("--phases", "examples,coverage,fuzzing", "--max-examples", "15", "--seed", "1"),
            # Injected faults must fail.
            *("--exclude-path-regex", "^/admin/faults", "--no-color"),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=10 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout.partition("FAILURES")[2][:5_000]
    tested = re.search(r"Tested: (\d+)", done.stdout)
    assert tested
    assert int(tested[1]) >= 20


@pytest.mark.parametrize("path", [CREATE, LIST, "/api/external/create/segment"])
def test_the_example_is_accepted(service_process, path):
    operation = described(service_process)["paths"][path]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    answer = service_process.post(path, json=example, headers=service_process.bearer())
    assert answer.status_code == 200, answer.text


def test_every_member_of_a_create_request_is_described(service_process):
    operation = described(service_process)["paths"][CREATE]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert {"title", "broadcast", "messages", "webhook_delivery", "device_ids", "send_type"} < set(
        schema["properties"]
    )
    assert schema["required"] == ["title"]


@pytest.mark.rule("4.1/form", "4.1/json", side="service")
def test_both_content_types_of_the_token_endpoint_are_described(service_process):
    operation = described(service_process)["paths"][TOKEN]["post"]
    content = operation["requestBody"]["content"]
    assert set(content) == {"application/json", "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/admin/faults", "DELETE, GET, POST"), ("/admin/segments", "GET, POST"), (CREATE, "POST")],
)
def test_a_wrong_method_is_answered_with_all_that_are_allowed(service_process, path, methods):
    answer = requests.put(service_process.base_url + path, timeout=PATIENCE)
    assert (answer.status_code, answer.headers["Allow"]) == (405, methods)
