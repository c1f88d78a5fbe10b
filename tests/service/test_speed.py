"""Requests are answered at once, even while a campaign is sent.

No test measures elapsed time alone, because it depends on the machine's other work.
"""

from __future__ import annotations

import statistics
import time
from shutil import copyfile

import psutil
import pytest
import requests

from ..local_service import QUICK, start_service
from ..waiting import PATIENCE

pytestmark = pytest.mark.proof

CREATE = "/api/external/create/campaign"
BODY = {"title": "t", "push_text": "x", "web_push": 1}
LATER = {"send_type": 1, "send_date": "2040-01-01", "send_time": "10:00"}
DEVICES = 20_000


def answered_in(session, service, body):
    started = time.monotonic()
    answer = session.post(service.base_url + CREATE, json=body, headers=service.bearer(), timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return time.monotonic() - started


def cost_of(session, service, body):
    """Return the processor time, in seconds, that the web process spends on 30 such requests."""
    process = psutil.Process(service.process.pid)
    before = process.cpu_times()
    for _ in range(30):
        answered_in(session, service, body)
    after = process.cpu_times()
    return after.user + after.system - before.user - before.system


@pytest.fixture(scope="module")
def service_process(service_database, tmp_path_factory):
    """A separate process, because the tests measure its processor time."""
    file, known = service_database
    database = copyfile(file, tmp_path_factory.mktemp("speed") / "service.db")
    service = start_service(f"sqlite:///{database}", known, *QUICK, process=True)
    yield service
    assert service.stop() == 0


@pytest.mark.parametrize("when", [{}, LATER], ids=["at once", "later"])
def test_ten_thousand_device_ids_cost_little_more_than_one(service_process, when):
    one, many = ({**BODY, **when, "device_ids": list(range(1, count + 1))} for count in (1, 10_000))
    with requests.Session() as session:
        answered_in(session, service_process, many)
        usual = cost_of(session, service_process, one)
        assert cost_of(session, service_process, many) < 5 * usual
    service_process.wait_until_quiet()


def test_the_sending_of_a_campaign_does_not_block_the_api(service_process, tmp_path):
    file = tmp_path / "devices.csv"
    lines = [f"{n},chrome,{n},u{n},en,UTC" for n in range(1, DEVICES + 1)]
    file.write_text("device_id,platform,profile_id,user_id,language,time_zone\n" + "\n".join(lines))
    service_process.command("devices", "import", str(file))
    answers, sendings = [], []
    with requests.Session() as session:
        while len(answers) < 20:  # the last answer may come after the sending of the campaign
            started = time.monotonic()
            answered_in(session, service_process, {**BODY, "broadcast": 1})
            while service_process.admin("progress")["runs"]["due"]:
                answers.append(answered_in(session, service_process, {**BODY, **LATER, "device_ids": [1]}))
            sendings.append(time.monotonic() - started)
    assert statistics.median(answers) < statistics.median(sendings) / 8
