"""What `docs/reliability.md` names exists, and the campaigns are as large as `tests/README.md` says."""

import math
import re
from pathlib import Path

from tests.artemis.conftest import LIVES
from tests.bridge import test_campaign_products, test_kafka_campaign, test_streams
from tests.bridge.campaign import Event
from tests.bridge.test_campaign import FULL
from tests.choosing import SIZES
from tests.docs import test_consumer_programs, test_recipes
from tests.durable import test_kills
from tests.durable.conftest import CAMPAIGNS
from tests.senders import test_sender_crashes

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
SIZES_OF_CAMPAIGNS = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
SHARE = 4
"""Each test that kills has this fraction of a campaign's kills."""
JUDGED = len(test_kills.JUDGED)
"""How many policies and ways to join transactions are tried with kills. The quick run tries each on one database."""
KILLS = [CAMPAIGNS[size].kills for size in SIZES]


def test_every_test_named_is_there():
    named = set(re.findall(r"`(tests/[^`]*)`", PAGE))
    named |= {f"tests/durable/{name}" for name in re.findall(r"`(test_\w+\.py)`", PAGE)}
    assert len(named) > 50
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_campaigns_are_as_large_as_it_says():
    campaigns = [CAMPAIGNS[size] for size in SIZES]
    rows = re.findall(r"^\| (.+) \| ([\d,]+|all) \| ([\d,]+|all) \| ([\d,]+|all) \|$", SIZES_OF_CAMPAIGNS, re.MULTILINE)
    assert [tuple(math.inf if text == "all" else int(text.replace(",", "")) for text in row[1:]) for row in rows] == [
        tuple(kills // SHARE * judged for kills, judged in zip(KILLS, (JUDGED // 2, JUDGED, JUDGED), strict=True)),
        tuple(kills // SHARE for kills in KILLS),
        tuple(campaign.restarts for campaign in campaigns),
        tuple(campaign.turns for campaign in campaigns),
        tuple(campaign.receipts_per_process for campaign in campaigns),
        tuple(campaign.faults for campaign in campaigns),
        tuple(LIVES[size] for size in SIZES),
        *(
            tuple(events[size][Event.KILL] for size in SIZES)
            for events in (FULL, test_campaign_products.FULL, test_campaign_products.AS_TARGET)
        ),
        *(
            tuple(counts[size] for size in SIZES)
            for counts in (
                test_kafka_campaign.KILLS,
                test_kafka_campaign.MESSAGES,
                test_streams.KILLS,
                test_streams.MESSAGES,
                test_sender_crashes.KILLS,
                test_consumer_programs.KILLS,
                test_recipes.KILLS,
            )
        ),
    ]
