"""The telemetry of a running receiver: metrics to a collector and to Prometheus, and logs as JSON."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

from ..ports import reserve_ports

Receiving = Callable[..., AbstractContextManager[Any]]
STORED = re.compile(r"^sendoff_post_backs_total(?:{[^}]*})? ([\d.e+]+)$", re.MULTILINE)
SERVED = re.compile(r"Metrics at (http://\S+)")


def test_each_process_sends_what_it_stored_and_refused(
    sqlite_url: str, receiving: Receiving, collector: Any
) -> None:
    settings = collector.environment | {
        "OTEL_METRIC_EXPORT_INTERVAL": "3600000",  # so metrics arrive only because the process ended
        "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
        "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=pod-1",
    }
    with receiving(sqlite_url, workers=2, environment=settings) as receiver:
        devices = count(1)
        while (
            len({process for process, _, _ in receiver.stored()}) < 2
        ):  # a process that stored nothing sends nothing
            assert receiver.post(next(devices)) == 200
        assert receiver.status("/nobody") == 404
        assert receiver.end(signal.SIGTERM) == 0
    stored = len(receiver.stored())
    assert collector.total("sendoff.post_backs") == stored
    assert collector.total("sendoff.post_backs.refused", status="404") == 1
    assert collector.total("sendoff.commit.size") == stored
    instances = {resource["service.instance.id"] for resource in collector.resources()}
    assert len(instances) == 2
    assert all(instance.startswith("pod-1/") for instance in instances)
    assert {resource["service.name"] for resource in collector.resources()} == {"sendoff"}


def test_prometheus_asks_each_process_at_a_port_of_its_own(sqlite_url: str, receiving: Receiving) -> None:
    first, _ = reserve_ports(2)
    settings = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(first)}
    with receiving(sqlite_url, workers=2, environment=settings) as receiver:
        addresses = SERVED.findall(receiver.log())
        assert len(set(addresses)) == 2
        assert [receiver.post(device) for device in range(1, 21)] == [200] * 20
        told = [float(count) for address in addresses for count in STORED.findall(_get(address))]
        assert sum(told) == 20
        assert receiver.status("/metrics", "GET") == 405


def test_a_collector_that_is_not_there_keeps_nobody_waiting(sqlite_url: str, receiving: Receiving) -> None:
    with socket.socket() as deaf:  # holds the port but does not listen
        deaf.bind(("127.0.0.1", 0))
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{deaf.getsockname()[1]}",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
        }
        with receiving(sqlite_url, environment=settings) as receiver:
            assert [receiver.post(device) for device in range(1, 31)] == [200] * 30
            assert receiver.end(signal.SIGTERM) == 0
    assert len(receiver.stored()) == 30


def test_metrics_that_cannot_be_sent_are_one_line_and_no_reason_to_store_nothing(
    sqlite_url: str, receiving: Receiving
) -> None:
    with receiving(sqlite_url, environment={"OTEL_METRICS_EXPORTER": "pigeon"}) as receiver:
        assert receiver.post(1) == 200
    assert receiver.log().count("No metrics are exported: there is no metrics exporter pigeon") == 1


def test_every_line_of_the_log_is_json_and_holds_no_secret(sqlite_url: str, receiving: Receiving) -> None:
    device = 7_340_000_001
    with receiving(sqlite_url, environment={"SENDOFF_LOG_FORMAT": "json"}) as receiver:
        assert receiver.post(device) == 200
        for path, body in (
            (receiver.path, b'{"device": {"id": 7340000001}'),
            (receiver.path + "x", receiver.body(device)),
            (receiver.path, b" " * 20_000),
        ):
            receiver.status(path, body=body)
        assert receiver.end(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in receiver.log().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    told = [line["message"] for line in lines if line["logger"] == "sendoff.postbacks.receiver"]
    assert any("stored=2" in message for message in told)
    assert {line["logger"].split(".")[0] for line in lines} == {"sendoff", "_granian"}
    for planted in (
        str(device),
        receiver.key,
        receiver.path.rpartition("/")[2][:20],
        receiver.secret[:20],
        "/v1/",
    ):
        assert planted not in receiver.log()


def test_a_setting_that_is_missing_is_one_line_of_json(sqlite_url: str, receiving: Receiving) -> None:
    settings = {"SENDOFF_LOG_FORMAT": "json"}
    with receiving(sqlite_url, wait=False, without="SENDOFF_PUBLIC_URL", environment=settings) as receiver:
        assert receiver.process.wait(60) == 1
    [line] = receiver.log().splitlines()
    told = json.loads(line)
    assert (told["level"], told["logger"]) == ("error", "sendoff")
    assert "SENDOFF_PUBLIC_URL" in told["message"]


def _get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=120) as answer:
        return str(answer.read().decode())
