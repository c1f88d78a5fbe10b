"""The sending of post-backs: reproducible, until accepted, and across restarts."""

from __future__ import annotations

import asyncio
import signal
import socketserver
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import requests
from sqlalchemy import insert, select
from typer.main import get_command
from typer.testing import CliRunner

from messaging_service.cli.main import main
from messaging_service.clock import ServiceClock
from messaging_service.delivery.behaviour import Behaviour
from messaging_service.delivery.leases import Leases
from messaging_service.delivery.postbacks import NOT_SENT, PostBackSender, Retry
from messaging_service.store import Store
from messaging_service.tables import campaigns, post_backs, runs

from ..waiting import PATIENCE, until

main_command = get_command(main)
INBOX = 6
TEMPLATE = {"title": "t", "trigger": 3, "send_type": 2, "content": b"{}", "warnings": [], "created_at": 0.0}
DEVICES = list(range(1, 701))
ALL = {"android_push": 1, "ios_push": 1, "web_push": 1, "inbox": 1, "device_ids": DEVICES}


GIGABYTE = 1_000_000_000


class Answering(socketserver.ThreadingTCPServer):
    """An endpoint that answers each request with ``head`` and ``body``; ``sent`` is the sent length of each body."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, head, body):
        super().__init__(("127.0.0.1", 0), self._answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.head, self.body, self.sent = head, body, []

    def _answer(self, connection, *_):
        with suppress(OSError):
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + self.head + b"\r\n")
            sent = 0
            try:
                for part in self.body:
                    sent += connection.send(part)
            finally:
                self.sent.append(sent)


@pytest.fixture
def answering():
    servers = []

    def start(head, body):
        servers.append(Answering(head, body))
        threading.Thread(target=servers[-1].serve_forever, args=(0.05,)).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def create(service, listener_url, **fields):
    addresses = {"webhook_delivery": f"{listener_url}/d", "webhook_open": f"{listener_url}/o"}
    return service.created(**{**ALL, **addresses, **fields})


def test_the_seed_alone_decides_who_receives_and_who_opens(service_start):
    service = service_start("--seed", "5")
    campaign = create(service, "http://127.0.0.1:9", android_push=0, ios_push=0, web_push=0)
    truth = truth_of_all(service, campaign)
    assert (truth["delivered"], truth["opened"]) == drawn(5, campaign) != drawn(6, campaign)


def drawn(seed, campaign):
    """Compute the outcomes that the service draws in its own process, for the inbox messages of its first run."""
    outcomes = {device: Behaviour(seed).draw(campaign, 1, device, INBOX) for device in DEVICES}
    delivered = [device for device, outcome in outcomes.items() if outcome.delivered_after is not None]
    return delivered, [device for device in delivered if outcomes[device].opened_after is not None]


@pytest.fixture(scope="module")
def certain(service_on, tmp_path_factory):
    """A service that delivers all messages, opens none, and tries each post-back four times."""
    folder = tmp_path_factory.mktemp("certain")
    shares = ("--delivered", "1", "--opened", "0", "--attempts", "4")
    return service_on(f"sqlite:///{folder}/service.db", folder, *shares)


def test_the_shares_are_followed(certain, service_listener):
    truth = truth_of_all(certain, create(certain, service_listener.url))
    assert (truth["delivered"], truth["opened"]) == (DEVICES, [])
    certain.wait_until_quiet()


def truth_of_all(service, campaign):
    until(lambda: not service.admin("progress")["runs"]["due"])
    return service.admin(f"campaigns/{campaign}/truth")


def test_every_post_back_arrives_exactly_once(service_process, service_listener):
    for _ in range(5):
        create(service_process, service_listener.url)
    progress = service_process.wait_until_quiet()
    keys = [(path, body["send"]["id"]) for path, body in service_listener.received]
    assert len(keys) == len(set(keys)) > 3_000
    assert progress["post_backs"]["sent"] == len(keys)


def test_a_post_back_is_sent_again_until_it_is_accepted(certain, service_listener):
    before = certain.wait_until_quiet()["post_backs"]
    service_listener.statuses += [500, 404, 302]
    create(certain, service_listener.url, device_ids=[2], inbox=0)
    after = certain.wait_until_quiet()["post_backs"]
    assert service_listener.devices("/d") == [2, 2, 2, 2]
    assert (after["sent"] - before["sent"], after["failed"] - before["failed"]) == (1, 0)


def test_a_post_back_that_is_never_accepted_is_given_up(certain):
    before = certain.wait_until_quiet()["post_backs"]
    create(certain, "http://127.0.0.1:9", device_ids=[2], inbox=0)  # nothing listens there
    after = certain.wait_until_quiet()["post_backs"]
    assert (after["sent"] - before["sent"], after["failed"] - before["failed"]) == (0, 1)


ELSEWHERE = ["http://192.0.2.7/d", "https://[2001:db8::1]/d", "http://\uff11\uff19\uff12.0.2.7:9/d"]


@pytest.mark.parametrize("address", ELSEWHERE)
def test_post_backs_to_the_number_of_another_machine_are_refused(certain, address):
    wrong = [
        {
            "field": "webhook_open",
            "message": "must be on this machine; to allow other machines, start serve with --post-backs-anywhere",
        }
    ]
    refused = certain.create(**{**ALL, "webhook_open": address})
    assert (refused.status_code, refused.json()["errors"]) == (400, wrong)
    template = certain.create(inbox=1, trigger=3).json()["model"]["id"]
    refused = certain.execute(id=template, target_by="id", target=[1], webhook_open=address)
    assert (refused.status_code, refused.json()["errors"]) == (400, wrong)


@pytest.mark.proof
def test_post_backs_go_elsewhere_where_the_service_is_told_so(service_start):
    service = service_start("--post-backs-anywhere", "--workers", "2", "--delivered", "0")
    for address in ELSEWHERE * 3:  # so that each process answers at least once
        assert service.create(**{**ALL, "webhook_open": address}).status_code == 200


# The connector sees the last one as a host name, but the resolver as 192.0.2.7.
@pytest.mark.parametrize("address", [*ELSEWHERE, "http://0xc0000207/d"])
def test_a_post_back_that_leads_elsewhere_is_noted_and_not_sent(tmp_path, address):
    store = Store(f"sqlite:///{tmp_path}/service.db")
    run = {"campaign_id": 1, "number": 1, "due_at": 0.0, "state": "done", "webhook_delivery": address}
    post_back = {"send_id": 1, "kind": "delivery", "body": b"{}", "state": "due", "due_at": 0.0}
    with store.write() as connection:
        connection.execute(insert(campaigns).values(TEMPLATE))
        run_id = connection.execute(insert(runs).values(run).returning(runs.c.id)).scalar_one()
        connection.execute(insert(post_backs).values({**post_back, "run_id": run_id}))

    async def send():
        stop = asyncio.Event()
        sending = asyncio.create_task(
            PostBackSender(store, Leases(store), ServiceClock(store), Retry()).run(stop)
        )
        try:
            await asyncio.to_thread(until, lambda: read().attempts)
        finally:
            stop.set()
            await sending
        row = read()
        return row.state, row.attempts, row.answer

    def read():
        with store.read() as connection:
            return connection.execute(select(post_backs)).one()

    try:
        assert asyncio.run(send()) == ("failed", 1, NOT_SENT)
    finally:
        store.close()


@pytest.mark.proof
def test_a_stop_loses_no_post_back(service_start, service_listener):
    service = service_start("--delay-from", "600", "--delay-to", "600", "--opened", "0")
    campaign = create(service, service_listener.url)
    truth = truth_of_all(service, campaign)
    assert service.stop() == 0
    assert service_listener.received == []
    again = service_start()
    assert again.post("/admin/clock/advance", json={"by": "600s"}).status_code == 200
    again.wait_until_quiet()
    assert set(service_listener.devices("/d")) == set(truth["post_backs"]["delivery"])


@pytest.mark.proof
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_both_processes_at_once(service_start, number):
    service = service_start(process=True)
    children = psutil.Process(service.process.pid).children(recursive=True)
    assert len(children) == 1
    service.process.send_signal(number)
    assert service.process.wait(PATIENCE) == 0
    assert not any(child.is_running() for child in children)


@pytest.mark.proof
def test_a_killed_service_leaves_no_process_behind(service_start):
    service = service_start(process=True)
    [child] = psutil.Process(service.process.pid).children(recursive=True)
    service.process.kill()
    service.process.wait(PATIENCE)
    child.wait(PATIENCE)


@pytest.mark.proof
def test_the_service_ends_when_its_deliveries_process_has_ended(service_start):
    service = service_start(process=True)
    [child] = psutil.Process(service.process.pid).children(recursive=True)
    child.kill()
    assert service.process.wait(PATIENCE) == 1


def called_or_posted(service, url, calls):
    """Call a URL, or post deliveries back to it, for three devices. Return how many failed."""
    before = service.admin("progress")["post_backs"]["failed"]
    fields = {"inbox": 1, "push_text": "T", "webhook_delivery": f"{url}/d"}
    if calls:
        fields = {"webhook": 1, "messages": {"8": {"webhook": {"url": f"{url}/hook"}}}}
    campaign = service.created(device_ids=[1, 2, 3], **fields)
    failed = service.wait_until_quiet()["post_backs"]["failed"] - before
    truth = service.admin(f"campaigns/{campaign}/truth")
    return failed + 3 - len(truth["delivered"])


BOTH = pytest.mark.parametrize("calls", [False, True], ids=["post-backs", "webhook messages"])


@BOTH
def test_no_answer_is_read_without_end(certain, answering, calls):
    part = b"x" * 1_000_000
    endless = answering(b"Content-Length: %d\r\n" % GIGABYTE, [part] * (GIGABYTE // len(part)))
    assert called_or_posted(certain, endless.url, calls) == 0
    until(lambda: len(endless.sent) >= 3)
    assert max(endless.sent) < GIGABYTE / 20  # the network buffers between the two processes


@pytest.mark.proof
@BOTH
def test_an_answer_that_unpacks_to_much_takes_no_memory(service_start, answering, calls):
    packing = zlib.compressobj(1, wbits=31)
    packed = b"".join([*(packing.compress(bytes(10_000_000)) for _ in range(60)), packing.flush()])
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(packed)
    service = service_start("--delivered", "1", "--opened", "0", process=True)
    assert called_or_posted(service, answering(head, [packed]).url, calls) == 0
    assert max(map(peak, psutil.Process(service.process.pid).children())) < 250_000_000


def peak(process):
    """Return a process's peak memory, in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1_024


def test_an_answer_with_a_wrong_encoding_accepts_a_post_back(certain, answering):
    nonsense = b"this was never compressed"
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(nonsense)
    assert called_or_posted(certain, answering(head, [nonsense]).url, calls=False) == 0


@pytest.mark.proof
def test_a_taken_port_is_said_clearly(service_process, service_command):
    port = service_process.base_url.rpartition(":")[2]
    said = service_command("serve", "--port", port, "--database", service_process.database, expect=1)
    assert said["error"].startswith(f"cannot listen on 127.0.0.1:{port}")


def test_a_renamed_parameter_is_read_under_its_new_name(service_start):
    service = service_start("--name", "device_ids=deviceIds")
    renamed = service.create(android_push=1, deviceIds=[1])
    assert renamed.status_code == 200
    assert service.create(android_push=1, device_ids=[1]).json()["errors"][0]["field"] == "broadcast"
    described = requests.get(f"{service.base_url}/openapi.json", timeout=PATIENCE).json()["paths"]
    body = described["/api/external/create/campaign"]["post"]["requestBody"]["content"]["application/json"]
    assert "deviceIds" in body["schema"]["properties"]
    assert "device_ids" not in body["schema"]["properties"]


def test_an_unknown_name_is_refused_with_the_list(service_command, tmp_path):
    said = service_command("serve", "--name", "title=x", "--database", f"sqlite:///{tmp_path}/s.db", expect=1)
    assert "device_ids" in said["error"]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("names", "both"),
    [
        (["device_ids=segment_ids"], "segment_ids and device_ids would both be spelled 'segment_ids'"),
        (["device_ids=title"], "title and device_ids would both be spelled 'title'"),
        (["device_ids=x", "external_ids=x"], "device_ids and external_ids would both be spelled 'x'"),
        (["target=device_ids"], "device_ids and target would both be spelled 'device_ids'"),
        (["target_by_email=id"], "target_by_device_id and target_by_email would both be spelled 'id'"),
        (["location_trigger_dwell=1"], "1 and location_trigger_dwell would both be spelled '1'"),
        (["message_ios_push=2"], "message_ios_push and message_android_push would both be spelled '2'"),
        (["webhook_body_form=raw"], "raw and webhook_body_form would both be spelled 'raw'"),
    ],
    ids=str,
)
def test_two_names_of_one_spelling_are_refused_at_the_start(service_command, tmp_path, names, both):
    arguments = [part for name in names for part in ("--name", name)]
    said = service_command("serve", *arguments, "--database", f"sqlite:///{tmp_path}/s.db", expect=1)
    assert both in said["error"]


def test_names_may_be_exchanged(service_start):
    service = service_start("--name", "device_ids=external_ids", "--name", "external_ids=device_ids")
    assert service.create(android_push=1, external_ids=[1]).status_code == 200
    assert service.create(android_push=1, device_ids=[1]).status_code == 400


def test_the_service_says_that_it_is_well(service_process):
    assert requests.get(f"{service_process.base_url}/healthz", timeout=PATIENCE).json() == {"status": "ok"}


@pytest.mark.proof
def test_a_request_over_a_connection_that_was_idle_is_answered_however_late_it_is_seen(service_start):
    service = service_start(process=True)
    process = psutil.Process(service.process.pid)
    with requests.Session() as session, ThreadPoolExecutor(1) as threads:
        assert session.get(f"{service.base_url}/healthz", timeout=PATIENCE).status_code == 200
        process.suspend()
        try:
            asked = threads.submit(session.get, f"{service.base_url}/healthz", timeout=PATIENCE)
            time.sleep(6)  # a second longer than the server's default for idle connections
        finally:
            process.resume()
        assert asked.result().status_code == 200


def test_the_command_is_installed_and_helps():
    command = Path(sys.executable).with_name("messaging-service")
    done = subprocess.run([command, "--help"], check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert "Usage" in done.stdout


def every_command(group=main_command, words=()):
    for name, command in getattr(group, "commands", {}).items():
        yield (*words, name)
        yield from every_command(command, (*words, name))


def test_help_of_every_command_works():
    commands = list(every_command())
    assert {("serve",), ("apps", "add"), ("faults", "add"), ("client-ids", "set-scopes")} < set(commands)
    for words in commands:
        done = CliRunner().invoke(main, [*words, "--help"])
        assert (done.exit_code, "Usage" in done.stdout) == (0, True), words
