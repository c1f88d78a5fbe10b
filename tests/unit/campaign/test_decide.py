"""The rules of ``decide``: who gets the variants first, and how the winner for the rest is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sendoff.campaign import Campaign, Variation, load_campaign
from sendoff.errors import CampaignError

from .campaigns import HALF, PUSHED, TONIGHT, broken, campaign

DECIDE = {"share": 20, "after": {"length": 2, "unit": "hours"}, "otherwise": "a"}
TWO = {**PUSHED, "variants": {"a": HALF, "b": HALF}}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {**PUSHED, "decide": DECIDE},
            "decide: found decide without variants. Use it with two variants or more",
        ),
        (
            {**TWO, "decide": {**DECIDE, "otherwise": "c"}},
            "decide.otherwise: found 'c'. Use one of the variants: a, b",
        ),
        (
            {**TWO, "decide": DECIDE, "send": TONIGHT},
            "decide: found decide with send.kind: once. Use send.kind: now",
        ),
        (
            {**TWO, "decide": DECIDE, "post_backs": {"kinds": ["delivery"]}},
            "decide.metric: found engaged without post-backs of opens. Use open in post_backs.kinds",
        ),
        (
            {**TWO, "decide": DECIDE, "gates": {"rollout": {}}},
            "decide: found both decide and gates.rollout. Use one of them",
        ),
        (
            {**TWO, "decide": DECIDE, "gates": {"lateness": {"length": 2, "unit": "hours"}}},
            "decide.after: found 2 hours with gates.lateness of 2 hours. Use a shorter time",
        ),
        ({**TWO, "decide": {**DECIDE, "share": 100}}, "decide.share\n  Input should be less than 100"),
        ({**TWO, "decide": {**DECIDE, "metric": "delivered"}}, "decide.metric\n  Input should be 'engaged'"),
    ],
)
def test_a_winner_that_cannot_be_chosen_is_refused(fields: dict[str, Any], problem: str) -> None:
    assert problem in broken(**fields)


def test_the_rest_may_be_sent_just_before_it_is_too_late() -> None:
    late = {"lateness": {"length": 121, "unit": "minutes"}}
    assert campaign(**TWO, decide=DECIDE, gates=late).decide


def test_a_mistake_is_reported_with_its_line(tmp_path: Path) -> None:
    folder = tmp_path / "spring"
    folder.mkdir()
    (folder / "audience.sql").write_text("SELECT device_id FROM devices")
    (folder / "campaign.yaml").write_text(
        "title: Spring\n"
        "message: {text: Hello}\n"
        "channels: {android_push: }\n"
        "variants: {plain: {percent: 50}, warm: {percent: 50}}\n"
        "decide:\n"
        "  share: 20\n"
        "  after: {length: 2, unit: hours}\n"
        "  otherwise: plane\n"
    )
    with pytest.raises(CampaignError) as caught:
        load_campaign(folder)
    place = f"{folder / 'campaign.yaml'}:8: decide.otherwise"
    assert f"{place}: found 'plane' (did you mean 'plain'?). Use one of the variants: plain, warm" in str(
        caught.value
    )


def test_decide_among_the_variants_is_a_mistake_that_says_where_it_belongs(tmp_path: Path) -> None:
    folder = tmp_path / "spring"
    folder.mkdir()
    (folder / "audience.sql").write_text("SELECT device_id FROM devices")
    (folder / "campaign.yaml").write_text(
        "title: Spring\n"
        "message: {text: Hello}\n"
        "channels: {android_push: }\n"
        "variants:\n"
        "  decide: {share: 20, otherwise: plain}\n"
        "  plain: {percent: 50}\n"
        "  warm: {percent: 50}\n"
    )
    with pytest.raises(CampaignError) as caught:
        load_campaign(folder)
    place = f"{folder / 'campaign.yaml'}:5: variants.decide"
    assert f"{place}: found decide among the variants. Use decide beside variants" in str(caught.value)


def test_the_campaign_of_a_variant_has_nothing_to_decide() -> None:
    made: Campaign = campaign(**TWO, decide=DECIDE)
    assert made.as_variant("a").decide is None
    assert made.possible(Variation("en")) == (Variation("en", "a"), Variation("en", "b"))
    assert made.possible(Variation("en", "b")) == (Variation("en", "b"),)
    assert campaign(**TWO).possible(Variation("en")) == (Variation("en"),)


def test_the_decision_is_described_in_words() -> None:
    made = campaign(**TWO, decide=DECIDE).decide
    assert made
    assert made.words == (
        "20 % get the variants first. After 2 hours, the rest gets the one that is clearly ahead, or else a."
    )
    assert "a person chooses the variant" in made.replace(by="person").words
