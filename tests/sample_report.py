"""The figures of one launch, for tests of reports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sendoff.figures import LaunchStats

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
WHOLE = LaunchStats(
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
    unknowable_because={"unreliable platform": 200},
    timeline=tuple((START + timedelta(minutes=m), 100 - m, 2 * m) for m in range(30)),
)
