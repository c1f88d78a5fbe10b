"""``sendoff diff``: what a change of campaigns changes for their recipients."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ...factories import make_warehouse

Command = Callable[..., "subprocess.CompletedProcess[str]"]

PUSH = "title: Back\nmessage: {title: Hello, text: Come back}\nchannels:\n  android_push:\n  ios_push:\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(folder: str, campaign: str = PUSH, query: str = "SELECT device_id\nFROM devices") -> None:
    path = Path(folder)
    path.mkdir(parents=True)
    (path / "campaign.yaml").write_text(campaign)
    (path / "audience.sql").write_text(query)


def test_a_change_of_a_text_and_of_the_holdout_is_said_in_one_sentence(sendoff: Command) -> None:
    write("old/back", f"{PUSH}audience: {{holdout: {{percent: 5}}}}\n")
    write(
        "new/back",
        f"{PUSH.replace('Come', 'Be')}audience: {{holdout: {{percent: 10}}}}\n",
        "SELECT device_id",
    )
    done = sendoff("diff", "old/back", "new/back")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout
        == """\
## `back`

The text of the push message, the share of the holdout and the audience query change; 2 files differ.

### Messages

`text` of android\\_push and ios\\_push

```diff
-Come back
+Be back
```

### Audience

`audience.sql`

```diff
 SELECT device_id
-FROM devices
```

### Variants and holdout

| Field | Before | After |
| --- | --- | --- |
| `audience.holdout.percent` | `5` | `10` |

"""
    )


def test_campaigns_are_compared_by_name_and_those_without_a_change_are_counted(sendoff: Command) -> None:
    for side in ("old", "new"):
        write(f"{side}/same")
        write(f"{side}/other")
    write("old/gone")
    write("new/fresh")
    lines = sendoff("diff", "old", "new").stdout.splitlines()
    assert lines[:3] == ["## `fresh`", "", "This campaign is new; 2 files."]
    gone = lines.index("## `gone`")
    assert lines[gone + 2] == "This campaign is removed."
    assert lines[-1] == "2 campaigns do not change."


@pytest.mark.parametrize(
    ("new", "sentence"),
    [
        (PUSH, "Nothing changes."),
        (f"{PUSH}# a comment\n", "Nothing changes for recipients; 1 file differs."),
        (f"{PUSH}owner: crm\n", "Nothing changes for recipients; 1 file differs."),
        (
            f"{PUSH}send: {{kind: once, time: '18:00', time_zone: UTC}}\n",
            "The send time changes; 1 file differs.",
        ),
        (f"{PUSH}gates: {{most: 9}}\n", "The gates change; 1 file differs."),
        (
            PUSH.replace("ios_push:", "sms: {sender: Shop, text: Hi}"),
            "ios_push is removed; sms is added; 1 file differs.",
        ),
        (f"{PUSH}connection: other\n", "The connection changes; 1 file differs."),
    ],
)
def test_the_sentence_names_what_changes(sendoff: Command, new: str, sentence: str) -> None:
    write("old/back")
    write("new/back", new)
    [found] = json.loads(sendoff("diff", "old", "new", "--json").stdout)["campaigns"]
    assert found["summary"].lower() == sentence.lower()
    assert found["may_send_again"] is ("connection" in new)


def test_a_renamed_campaign_is_compared_and_warned_about(sendoff: Command) -> None:
    write("back")
    write("again")
    told = sendoff("diff", "back", "again").stdout
    assert "The name changes from back to again; 0 files differ." in told
    assert "**To Sendoff this is another campaign" in told


def test_a_text_says_that_it_is_also_that_of_all_other_languages(sendoff: Command) -> None:
    spoken = "message: {title: Hello, text: Hi, translations: {fr: {title: Bonjour, text: Salut}}}"
    campaign = f"title: Back\nlanguage: en\n{spoken}\nchannels: {{ios_push: }}\n"
    write("old/back", campaign)
    write("new/back", campaign.replace("text: Hi", "text: Hey"))
    told = sendoff("diff", "old", "new").stdout
    assert "`text` of ios\\_push in en and all other languages" in told


def test_a_name_that_formerly_loses_is_warned_about(sendoff: Command) -> None:
    write("old/back", f"{PUSH}formerly: [return]\n")
    write("new/back")
    told = sendoff("diff", "old", "new").stdout
    assert "The earlier names change; 1 file differs." in told
    warning = (
        "**A period that was sent under an earlier name, return, will be sent again. Keep it in formerly.**"
    )
    assert warning in told


def test_a_renamed_campaign_is_asked_only_for_the_names_that_it_loses(sendoff: Command) -> None:
    write("back", f"{PUSH}formerly: [return]\n")
    write("again", f"{PUSH}formerly: [back]\n")
    told = sendoff("diff", "back", "again").stdout
    assert "sent under an earlier name, return, will be sent again" in told
    assert "another campaign" not in told


def test_a_new_schedule_is_said_to_send_no_period_twice(sendoff: Command) -> None:
    scheduled = f"{PUSH}schedule: '0 9 * * *'\nstart: 2026-01-01\n"
    write("old/back", scheduled)
    write("new/back", scheduled.replace("0 9", "0 10"))
    told = sendoff("diff", "old", "new").stdout
    assert "The schedule changes; 1 file differs." in told
    assert "A run whose period overlaps one that was sent is skipped" in told


def test_the_exit_code_says_on_request_whether_something_changes(sendoff: Command) -> None:
    write("old/back")
    write("new/back", f"{PUSH}owner: crm\n")
    assert sendoff("diff", "old", "new").returncode == 0
    assert sendoff("diff", "old", "new", "--exit-code").returncode == 3
    assert sendoff("diff", "old", "old", "--exit-code").returncode == 0


def test_a_changed_step_of_a_journey_is_a_change(sendoff: Command) -> None:
    for side, least in (("old", 5), ("new", 6)):
        step = f"{PUSH}gates: {{least: {least}}}".replace("\n", "\n    ")
        path = Path(side, "welcome")
        path.mkdir(parents=True)
        (path / "journey.yaml").write_text(f"title: Welcome\nsteps:\n  - name: hello\n    {step}\n")
        (path / "audience.sql").write_text("SELECT device_id FROM devices")
    done = sendoff("diff", "old", "new", "--exit-code")
    assert (done.returncode, done.stderr) == (3, "")
    assert "## `welcome.hello`" in done.stdout
    assert "1 file differs." in done.stdout
    assert sendoff("diff", "old", "old").stdout == "1 campaign does not change.\n"


def test_a_mistake_on_either_side_is_an_error(sendoff: Command) -> None:
    write("old/back")
    write("new/back", "titel: Back\n")
    for sides in (("old", "new"), ("new", "old")):
        done = sendoff("diff", *sides, "--exit-code")
        assert (done.returncode, done.stdout) == (1, "")
        assert "new/back/campaign.yaml:1: titel:" in done.stderr.replace("\n", "")
    Path("none").mkdir()
    assert "there is no campaign in none" in sendoff("diff", "none", "none").stderr
    assert sendoff("diff", "none", "old").stdout.startswith("## `back`")


def test_a_changed_default_is_a_change_of_each_campaign_that_uses_it(sendoff: Command) -> None:
    for side, most in (("old", 5), ("new", 6)):
        write(f"{side}/campaigns/back")
        write(f"{side}/campaigns/own", f"{PUSH}gates: {{most: 5}}\n")
        Path(side, "campaigns/defaults.yaml").write_text(f"gates: {{most: {most}}}\n")
    done = sendoff("diff", "old", "new", "--json")
    (back, own) = json.loads(done.stdout)["campaigns"]
    assert [(each["name"], each["before"], each["after"]) for each in back["changes"]] == [
        ("gates.most", "5", "6")
    ]
    assert (back["files"], own["files"]) == (["defaults.yaml"], [])


def warehouse() -> str:
    rows = [(n, f"Ms Example {n}") for n in range(1, 11)]
    return make_warehouse(Path("shop.db"), "devices (device_id INTEGER, external_id TEXT)", rows)


def previewed(sendoff: Command, *more: str) -> subprocess.CompletedProcess[str]:
    return sendoff("diff", "old", "new", "--preview", "--warehouse", warehouse(), *more)


def test_a_preview_counts_who_is_added_and_removed_without_naming_them(sendoff: Command) -> None:
    write("old/back", query="SELECT device_id FROM devices WHERE device_id <= 4")
    write("new/back", f"{PUSH}gates: {{most: 5}}\n", "SELECT device_id FROM devices WHERE device_id >= 3")
    write("old/gone", query="SELECT device_id FROM devices")
    write("new/born", query="SELECT device_id FROM devices WHERE device_id = 1")
    for side in ("old", "new"):
        write(f"{side}/same", query="SELECT device_id FROM nowhere")
    done = previewed(sendoff, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = {each["name"]: each.get("recipients") for each in json.loads(done.stdout)["campaigns"]}
    gates = {gate["name"]: gate["is_open"] for gate in found["back"].pop("gates")}
    assert gates == {"least": True, "most": False}
    counts = {
        name: change and tuple(change[part] for part in ("before", "after", "added", "removed"))
        for name, change in found.items()
    }
    assert counts == {
        "back": (4, 8, 6, 2),
        "born": (None, 1, None, None),
        "gone": (10, None, None, None),
        "same": None,
    }


def test_recipients_that_cannot_be_compared_are_said_to_be(sendoff: Command) -> None:
    write("old/back", query="SELECT device_id FROM devices")
    write("new/back", query="SELECT external_id FROM devices")
    write("new/everybody", f"{PUSH}targeting: {{kind: broadcast}}\n")
    Path("new/everybody/audience.sql").unlink()
    done = previewed(sendoff)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "Who is added cannot be known, because another column identifies the recipients." in done.stdout
    assert "The service chooses the recipients, so they cannot be counted." in done.stdout
    assert "Ms Example" not in done.stdout


def test_recipients_from_verdicts_are_said_to_be_in_a_ledger(sendoff: Command) -> None:
    write("new/reminder", f"{PUSH}audience: {{source: {{kind: verdicts, of: back, are: [delivered]}}}}\n")
    Path("new/reminder/audience.sql").unlink()
    Path("old").mkdir()
    done = previewed(sendoff)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "The recipients come from the verdicts of another launch, which are in a ledger." in done.stdout
    assert "cannot be launched" not in done.stdout
    assert "The service chooses" not in done.stdout


def test_a_new_version_that_cannot_be_launched_is_an_error_and_an_old_one_is_not(sendoff: Command) -> None:
    write("old/back", query="SELECT device_id FROM nowhere")
    write("new/back", query="SELECT device_id FROM devices")
    done = previewed(sendoff)
    assert done.returncode == 0
    assert "The old version cannot be launched: campaign back: audience.sql" in done.stdout
    Path("new/back/audience.sql").write_text("SELECT device_id FROM devices WHERE device_id > 99")
    Path("shop.db").unlink()
    done = previewed(sendoff)
    assert done.returncode == 1
    assert (
        "**The new version cannot be launched: campaign back: the audience query returned no rows"
        in done.stdout
    )
