"""What `docs/reliability.md` names is there, and the campaigns are as large as it says."""

import re
from pathlib import Path

from tests.durable.conftest import CAMPAIGNS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
KILLING_TESTS = 4
"""Which share the kills of one database."""
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
        tuple(campaign.kills // KILLING_TESTS * KILLING_TESTS for campaign in (small, long)),
        tuple(campaign.kills // KILLING_TESTS for campaign in (small, long)),
        (small.restarts, long.restarts),
        tuple(campaign.receipts_per_process // RECEIPTS_PER_TURN for campaign in (small, long)),
        (small.receipts_per_process, long.receipts_per_process),
    ]
