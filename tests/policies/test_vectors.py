"""The answers of a real Artemis broker, and of Solace's own client library."""

import json
from pathlib import Path

import pytest

from receiver.policies import ArtemisIdCache, IdFormatError, NotComparableError, ReplicationGroupMessageId, policy

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
ARTEMIS = json.loads((VECTORS / "artemis_id_cache.json").read_text(encoding="utf-8"))["cases"]
SOLACE = json.loads((VECTORS / "solace_rgmid.json").read_text(encoding="utf-8"))
PARSED, COMPARED = SOLACE["parse"], SOLACE["compare"]


@pytest.mark.parametrize("case", ARTEMIS, ids=lambda case: case["address"])
def test_what_a_broker_accepted(case):
    cache = policy(f"artemis:id_cache_size={case['id_cache_size']}")
    assert isinstance(cache, ArtemisIdCache)
    for number, step in enumerate(case["steps"]):
        if step["transaction"]:
            accepted = cache.receive_transaction(step["ids"]) == "new"
        else:
            (id_,) = step["ids"]
            accepted = cache.receive(id_, received_at_us=number).deliver
        assert accepted == step["accepted"], (number, step)


@pytest.mark.parametrize("case", PARSED, ids=lambda case: case["text"] or "empty")
def test_what_solaces_library_parsed(case):
    if case["ok"]:
        assert str(ReplicationGroupMessageId.parse(case["text"])) == case["canonical"]
    else:
        with pytest.raises(IdFormatError):
            ReplicationGroupMessageId.parse(case["text"])


@pytest.mark.parametrize("case", COMPARED, ids=str)
def test_how_solaces_library_compared(case):
    one, other = map(ReplicationGroupMessageId.parse, (case["a"], case["b"]))
    if case["sign"] is None:
        for left, right in ((one, other), (other, one)):
            with pytest.raises(NotComparableError, match="different origins"):
                left.compare(right)
    else:
        assert (one.compare(other), other.compare(one)) == (case["sign"], -case["sign"])
