import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sendoff.figures import Figures

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


def figures(**changes: object) -> Figures:
    return replace(
        Figures(
            launch_key="0f" * 16,
            campaign="lapsed_buyers",
            period="2026-03-01T09:00:00+00:00",
            as_of=START + timedelta(hours=1),
            rows=1_030,
            dropped={"null": 10, "duplicate": 20},
            audience=1_000,
            segments=4,
            dispatches={"accepted": 3, "in_doubt": 1},
            verdicts={
                "engaged": 200,
                "delivered": 300,
                "missing": 50,
                "unknowable": 200,
                "in_doubt": 250,
                "not_sent": 0,
            },
            by_platform={
                "android": {"engaged": 100, "unknowable": 200},
                "chrome": {"engaged": 100, "delivered": 300, "missing": 50, "in_doubt": 250},
            },
            anomalies={"unexpected": 1, "forged": 0, "late": 0, "duplicate": 7, "unreadable": 2},
            post_backs={"delivery": 400, "open": 210},
            timeline=tuple((START + timedelta(minutes=m), 100 - m, 2 * m) for m in range(30)),
        ),
        **changes,
    )


def test_figures_survive_json() -> None:
    whole = figures()
    assert Figures.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_figures_say_what_is_unaccounted_for() -> None:
    assert (figures().unaccounted_rows, figures().unaccounted_identifiers) == (0, 0)
    assert figures(rows=1_033).unaccounted_rows == 3
    assert figures(audience=990, rows=1_020).unaccounted_identifiers == -10


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        figures(as_of=datetime(2026, 3, 1))  # noqa: DTZ001
