"""Several worker processes on SQLite and PostgreSQL: nothing is sent twice or lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import jwt
import psutil
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ..waiting import PATIENCE, until

CREATE = "/api/external/create/campaign"
TOKEN = "/api/oauth/token"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
EVERYONE = {"inbox": 1, "web_push": 1, "broadcast": 1}


pytestmark = pytest.mark.proof  # several processes


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request, tmp_path_factory):
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_url")
    return f"sqlite:///{tmp_path_factory.mktemp('workers')}/service.db"


@pytest.fixture(scope="module")
def service(database, service_on, tmp_path_factory):
    service = service_on(database, tmp_path_factory.mktemp("devices"), "--workers", "2")
    yield service
    service.stop()  # before its database is dropped


def processes(service):
    return psutil.Process(service.process.pid).children(recursive=True)


def test_every_post_back_of_many_campaigns_is_sent_exactly_once(service, service_listener):
    addresses = {"webhook_delivery": f"{service_listener.url}/d", "webhook_open": f"{service_listener.url}/o"}
    for _ in range(8):
        assert service.create(**EVERYONE, **addresses).status_code == 200
    service.wait_until_quiet()
    counts = Counter((path, body["send"]["id"]) for path, body in service_listener.received)
    assert set(counts.values()) == {1}
    expected = [
        device
        for campaign in service.admin("campaigns")["campaigns"]
        for kind in ("delivery", "open")
        for device in service.admin(f"campaigns/{campaign['id']}/truth")["post_backs"][kind]
    ]
    assert len({body["campaign"]["id"] for _, body in service_listener.received}) == 8
    assert len(counts) >= len(expected) > 3_000


def test_each_device_gets_each_message_once(service):
    campaign = service.create(**EVERYONE).json()["model"]["id"]
    service.wait_until_quiet()
    [listed] = [item for item in service.admin("campaigns")["campaigns"] if item["id"] == campaign]
    messages = listed["messages"]
    # All 700 devices have an inbox, and 500 of them are browsers.
    assert messages["sent"] == 1_200


def test_every_process_of_the_service_works(service):
    assert len(processes(service)) == 3
    before = {child.pid: child.cpu_times().user for child in processes(service)}
    headers = service.bearer()
    body = {"title": "t", "push_text": "x", "inbox": 1, "device_ids": [1]}

    def ask():
        for _ in range(10):
            assert service.post(CREATE, json=body, headers=headers).status_code == 200

    def has_everybody_worked():
        with ThreadPoolExecutor(4) as threads:
            for asked in [threads.submit(ask) for _ in range(4)]:
                asked.result()
        after = {child.pid: child.cpu_times().user for child in processes(service)}
        return all(after[pid] > before[pid] for pid in before)

    until(has_everybody_worked)


@pytest.mark.rule("5.1/jti", "7/jti", "8/jti", side="service")
def test_a_jti_is_spent_once_whichever_process_is_asked(service, tmp_path):
    private = ec.generate_private_key(ec.SECP256R1())
    file = tmp_path / "key.pem"
    file.write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    arguments = ("--name", "k", "--type", "public-key", "--key", str(file))
    client_id = service.command("client-ids", "add", *arguments)["client_id"]
    now = int(time.time())
    claims = {"iss": client_id, "sub": client_id, "iat": now, "exp": now + 300, "jti": str(uuid4())}
    form = {"grant_type": GRANT, "assertion": jwt.encode(claims, private, "ES256")}
    all_there = threading.Barrier(12, timeout=PATIENCE)

    def ask():
        all_there.wait()
        return service.post(TOKEN, data=form).status_code

    with ThreadPoolExecutor(12) as threads:
        statuses = [asked.result() for asked in [threads.submit(ask) for _ in range(12)]]
    assert Counter(statuses) == {200: 1, 400: 11}


def test_a_fault_of_the_next_requests_strikes_so_often_in_all_processes(service):
    service.command("faults", "add", "500", "--count", "5")
    statuses = [service.create(inbox=1, device_ids=[1]).status_code for _ in range(12)]
    assert Counter(statuses) == {500: 5, 200: 7}


def test_what_cannot_be_stored_is_refused_and_not_a_failure(service):
    answer = service.create(title="a\0b", inbox=1, device_ids=[1])
    assert (answer.status_code, answer.json()["success"]) == (400, False)
    form = {"grant_type": "client_credentials", "client_id": "\0", "client_secret": "x"}
    assert service.post(TOKEN, data=form).status_code == 400


def test_the_service_ends_when_one_of_its_processes_has_ended(service_start):
    service = service_start("--workers", "2")

    def children():
        return [p for p in processes(service) if "messaging_service.web_process" in p.cmdline()]

    until(children)  # a new process first has the command line of its parent
    child = children()[0]
    others = [p for p in processes(service) if p != child]
    os.kill(child.pid, signal.SIGKILL)
    assert service.process.wait(PATIENCE) == 1
    assert not any(other.is_running() for other in others)


def test_state_survives_a_restart(database, service, service_on, service_listener, tmp_path):
    headers = service.bearer()
    before = service.admin("campaigns")["total"]
    assert service.stop() == 0
    slow = service_on(database, tmp_path, "--delay-from", "600", "--delay-to", "600", known=service)
    body = {"title": "t", "push_text": "x", **EVERYONE, "webhook_open": f"{service_listener.url}/o"}
    campaign = slow.post(CREATE, json=body, headers=headers).json()["model"]["id"]
    until(lambda: not slow.admin("progress")["runs"]["due"])
    assert slow.stop() == 0
    assert service_listener.received == []
    again = service_on(database, tmp_path, known=service)
    assert again.post("/admin/clock/advance", json={"by": "20m"}).status_code == 200
    again.wait_until_quiet()
    assert again.admin("campaigns")["total"] == before + 1
    opened = again.admin(f"campaigns/{campaign}/truth")["post_backs"]["open"]
    assert set(service_listener.devices("/o")) == set(opened)
    assert again.stop() == 0
