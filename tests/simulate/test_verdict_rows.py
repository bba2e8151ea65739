"""The verdict on each receipt is the model's."""

from hypothesis import given
from hypothesis import strategies as st
from small_logs import domains_of, ingested, judged, logs

from receiver.simulate.whole import WholeLog
from tests.choosing import cases

SETTINGS = st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 7, 10, 50])).filter(any)


@given(logs(), SETTINGS, st.sampled_from(["default", "destination", "name:x"]))
@cases(100)
def test_one_row_per_receipt_in_order_with_the_verdict_of_the_model(log, setting, key):
    rows = [row for batch in WholeLog(ingested(log, key)).verdict_batches(*setting) for row in batch.to_pylist()]
    expected = zip(domains_of(log, key), log, judged(log, *setting, key).verdicts, strict=True)
    assert rows == [
        {
            "row": number,
            "domain": domain,
            "unique_message_id": receipt.unique_message_id,
            "message_source_id": receipt.message_source_id,
            "verdict": verdict,
        }
        for number, (domain, receipt, verdict) in enumerate(expected)
    ]
