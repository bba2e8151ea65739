"""What `docs/reliability.md` names is there, and the campaigns are as large as it says."""

import re
from pathlib import Path

from tests.artemis.conftest import LIVES
from tests.bridge.campaign import Event
from tests.bridge.test_campaign import FULL
from tests.durable.conftest import CAMPAIGNS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
SHARE = 4
"""One in so many of a campaign's kills is in each test that kills."""
JUDGED = 9
"""The policies and ways to join transactions under which processes are killed."""
RECEIPTS_PER_TURN = 250
"""By which the long runs against the model go."""


def test_every_test_named_is_there():
    named = set(re.findall(r"`(tests/[^`]*)`", PAGE))
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_campaigns_are_as_large_as_it_says():
    small, long = CAMPAIGNS["small"], CAMPAIGNS["long"]
    rows = re.findall(r"^\| (.+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    assert [(int(default.replace(",", "")), int(more.replace(",", ""))) for _, default, more in rows] == [
        tuple(campaign.kills // SHARE * JUDGED for campaign in (small, long)),
        tuple(campaign.kills // SHARE for campaign in (small, long)),
        (small.restarts, long.restarts),
        tuple(campaign.receipts_per_process // RECEIPTS_PER_TURN for campaign in (small, long)),
        (small.receipts_per_process, long.receipts_per_process),
        (LIVES["small"], LIVES["long"]),
        (FULL["small"][Event.KILL], FULL["long"][Event.KILL]),
    ]
