"""Tags in a campaign's texts: names in double braces, without any other template code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sendoff.campaign import Campaign, check_campaign, load_campaign
from sendoff.errors import CampaignError

WEB = "https://shop.example.com/"
MISTAKES = [
    ("Hi {{first_name}", "{{first_name at character 4, which no }} closes. Use {{first_name}}, closed with"),
    ("Hi {{ last_name, hi", "{{ last_name at character 4, which no }} closes. Use {{last_name}}, closed"),
    ("Hi {{", "{{ at character 4, which no }} closes. Use {{first_name}}, closed"),
    ("{% if vip %}", "{% if at character 1. Use text and tags, such as {{first_name}}; the service runs no"),
    ("{{ x | title }}", "{{ x | title }} at character 1. Use only a name between the braces, such as"),
    ("{{ x if y }}", "{{ x if y }} at character 1. Use only a name between the braces"),
    ("{{ x |\n title }}", "a tag of 16 characters at character 1 of line 1 of the text. Use only a name"),
    ("{{#if x}}", "{{#if x}} at character 1. Use only a name"),
    ("{{}}", "a tag without a name at character 1. Use a name between the braces, such as {{first_name}}"),
    ("{{{first_name}}}", "three braces at character 1. Use a tag with two braces on each side"),
    ("Hi {first_name}", "{first_name} at character 4. Use {{first_name}}, with two braces on each side"),
    ("Hi {first_name}}", "{first_name} at character 4. Use {{first_name}}, with two braces on each side"),
    ("{{a}}\nHi {b}\n", "{b} at character 4 of line 2 of the text. Use {{b}}, with two braces"),
    ("Hi {# dear #}", "a comment at character 4. Use text and tags, but no template code"),
    ("Hi {# {first_name} #}", "a comment at character 4. Use text and tags, but no template code"),
    ("Hi {first_name} {# #}", "{first_name} at character 4. Use {{first_name}}, with two braces on each side"),
    ("Hi {# {first_name}", "{first_name} at character 7. Use {{first_name}}, with two braces on each side"),
]  # fmt: skip
SOUND = [
    "Hi {{first_name}}, {{ last-name }} and {{profile.city}}, {{größe}}",
    "100 % {of it} {} { } } {",
    "a { b: c } d",
    "seats {#12} and {#",
    "{#" * 250_000,  # if each began a search for its end, this would take minutes
]


def campaign(**fields: Any) -> Campaign:
    made = Campaign.model_validate({"title": "Spring", **fields})
    check_campaign(made)
    return made


def pushed(text: str, **more: Any) -> Campaign:
    return campaign(message={"title": "Hello", "text": text}, channels={"android_push": None}, **more)


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_a_tag_that_would_reach_people_as_it_stands_is_refused(text: str, said: str) -> None:
    with pytest.raises(CampaignError) as error:
        pushed(text)
    assert f"found {said}" in str(error.value)


@pytest.mark.parametrize("text", SOUND)
def test_braces_that_are_no_tag_are_left_alone(text: str) -> None:
    assert pushed(text).message


def test_the_place_of_a_tag_is_told_with_file_line_and_field(tmp_path: Path) -> None:
    (tmp_path / "spring").mkdir()
    (tmp_path / "spring/audience.sql").write_text("SELECT device_id FROM devices")
    (tmp_path / "spring/campaign.yaml").write_text(
        "title: Spring\nmessage:\n  title: Hello\n  text: A secret for {{first_name}\nchannels:\n  android_push:\n"
    )
    with pytest.raises(CampaignError) as error:
        load_campaign(tmp_path / "spring")
    assert "campaign.yaml:4: message.text: found {{first_name at character 14" in str(error.value)
    assert "secret" not in str(error.value)


BROKEN = "{{x}"
EMAIL = {"from_address": 1, "subject": "Hello", "text": "Words"}
SMS = {"sender": "Shop", "text": "Words"}
CALL = {"address": WEB}
WORDS = {"title": "Hello", "text": "Words"}
PUSH = {"ios_push": None}
HALF = {"percent": 50}


@pytest.mark.parametrize(
    "fields",
    [
        *({"message": {**WORDS, part: BROKEN}, "channels": PUSH} for part in ("title", "text", "page")),
        *({"message": {**WORDS, part: WEB + BROKEN}, "channels": PUSH} for part in ("url", "picture", "icon")),
        {"message": {**WORDS, "payload": {"a": BROKEN}}, "channels": PUSH},
        {"message": {**WORDS, "translations": {"de": {**WORDS, "text": BROKEN}}}, "language": "en", "channels": PUSH},
        {"message": WORDS, "channels": {"ios_push": {"text": BROKEN}}},
        {"message": WORDS, "channels": {"web_push": {"browsers": ["chrome"], "title": BROKEN}}},
        {"message": WORDS, "channels": {"inbox": {"text": BROKEN}}},
        *({"channels": {"email": {**EMAIL, part: BROKEN}}} for part in ("subject", "html", "text")),
        {"language": "en", "channels": {"email": {**EMAIL, "translations": {"de": {"subject": BROKEN, "text": "x"}}}}},
        *({"channels": {"sms": {**SMS, part: BROKEN}}} for part in ("sender", "text")),
        {"channels": {"webhook": {"address": WEB + BROKEN}}},
        *({"channels": {"webhook": {**CALL, part: {"a": BROKEN}}}} for part in ("query", "headers")),
        {"channels": {"webhook": {**CALL, "body": {"kind": "json", "content": BROKEN}}}},
        {"message": WORDS, "channels": PUSH, "variants": {"a": HALF, "b": {**HALF, "message": {"text": BROKEN}}}},
    ],
    ids=str,
)  # fmt: skip
def test_every_text_that_carries_tags_is_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(CampaignError, match=r"which no \}\} closes"):
        campaign(**fields)


def test_code_of_a_browser_and_json_may_have_single_braces() -> None:
    page = "<style>p{color}</style><p>{{first_name}}</p><script>if (a) {b} </script>"
    body = '{"a": {"b": {{points}}}, "query": "{ me { id } }"}'
    made = campaign(
        channels={
            "email": {**EMAIL, "html": page},
            "webhook": {**CALL, "body": {"kind": "json", "content": body}},
        }
    )
    assert made.filled_in() == ("first_name", "points")


def test_a_launch_that_was_frozen_with_such_a_text_is_still_read() -> None:
    frozen = pushed("Hi").model_dump_json().replace('"Hi"', '"Hi {{first_name}"')
    read = Campaign.frozen(frozen)
    assert read.message
    assert read.message.text == "Hi {{first_name}"


def test_a_launch_that_was_frozen_with_a_date_that_is_too_late_now_is_still_read() -> None:
    until = {"time": "23:59", "time_zone": "UTC", "date": "2026-12-31"}
    frozen = pushed("Hi", push_expiry={"until": until}).model_dump_json().replace("2026-12-31", "9999-12-31")
    assert "9999-12-31" in Campaign.frozen(frozen).model_dump_json()


DEEP = "myshop://basket/42"


@pytest.mark.parametrize(
    "link", [DEEP, "myshop://{{basket_id}}", "com.example.shop:/basket", "mailto:a@example.com", WEB]
)
@pytest.mark.rule("2.5/url", side="client")
def test_push_and_inbox_may_lead_into_an_app(link: str) -> None:
    translated = {"de": {**WORDS, "url": link}}
    made = campaign(
        language="en",
        message={**WORDS, "url": link, "translations": translated},
        channels={"android_push": {"url": link}, "ios_push": None, "inbox": {"url": link}},
    )
    assert made.message
    assert made.message.url == link


@pytest.mark.parametrize(
    "link",
    [
        "basket/42", "//shop.example.com", "http://shop.example.com", "https://",
        "htps://shop.example.com", "HTTPSS:a", "shop.example.com:443/x", "myshop:", "myshop://",
        "my shop://a", "myshop://a b", "javascript:alert(1)", "data:text/html,a", "", ":a",
        "https://shop.example.com:99999/", "https://shop.example.com:abc",
    ],
)  # fmt: skip
def test_a_link_that_leads_nowhere_or_runs_code_is_refused(link: str) -> None:
    with pytest.raises(ValidationError, match="a link into the app such as myshop://basket/42"):
        campaign(message={**WORDS, "url": link}, channels={"android_push": None})


@pytest.mark.parametrize("port", ["0", "65536", "99999", "abc", "-1", "{{port}}"])
def test_a_port_that_cannot_be_is_refused_but_a_frozen_launch_with_it_is_still_read(port: str) -> None:
    picture = "https://shop.example.com:8443/p.png"
    made = campaign(message={**WORDS, "picture": picture, "url": picture}, channels={"ios_push": None})
    frozen = Campaign.frozen(made.model_dump_json().replace("8443", port))
    assert frozen.message
    assert frozen.message.picture == frozen.message.url == picture.replace("8443", port)
    for field in ("picture", "url"):
        with pytest.raises(ValidationError, match=r"\(a port must be 1 to 65535\)"):
            campaign(message={**WORDS, field: picture.replace("8443", port)}, channels={"ios_push": None})


def test_a_browser_and_a_picture_need_a_web_address() -> None:
    chrome = {"browsers": ["chrome"]}
    shared: dict[str, Any] = {
        "message": {**WORDS, "url": DEEP},
        "channels": {"ios_push": None, "web_push": chrome},
    }
    with pytest.raises(
        CampaignError,
        match=r"channels.web_push: found no web address to open. Use a web address in channels",
    ):
        campaign(**shared)
    assert campaign(**shared | {"channels": {"ios_push": None, "web_push": {**chrome, "url": WEB}}})
    for message, channels in (
        ({**WORDS, "picture": DEEP}, {"ios_push": None}),
        (WORDS, {"web_push": {**chrome, "url": DEEP}}),
    ):
        with pytest.raises(
            ValidationError, match="a web address that starts with https:// and has no spaces"
        ):
            campaign(message=message, channels=channels)
    translations = {"de": {**WORDS, "url": DEEP}}
    with pytest.raises(CampaignError, match=r"message.translations.de.url: found a link into an app"):
        campaign(
            language="en",
            message={**WORDS, "url": WEB, "translations": translations},
            channels={"ios_push": None, "web_push": chrome},
        )
