"""From batches to columns: nothing is merged or lost, however the log is cut into batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_logs import Batches, Receipt, batches, ingested, logs

from receiver.domains import domain_key
from receiver.errors import LogFormatError
from receiver.logs import LogBatch, StatusLine
from receiver.simulate.ingest import ingest
from tests.choosing import cases


def rows_of(receipts):
    ids = receipts.ids.texts(receipts.id_number).to_pylist()
    return [
        Receipt(time_us, id_, receipts.sources[source], *receipts.channels[channel], jms_redelivered=redelivered)
        for time_us, id_, source, channel, redelivered in zip(
            receipts.received_at_us.tolist(),
            ids,
            receipts.source_number.tolist(),
            receipts.channel_number.tolist(),
            receipts.redelivered.tolist(),
            strict=True,
        )
    ]


@given(logs(), st.integers(1, 50), st.booleans())
@cases(100)
def test_the_columns_hold_the_rows(log, rows, dictionaries):
    receipts = ingested(log, rows=rows, dictionaries=dictionaries)
    assert rows_of(receipts) == [receipt._replace(body_digest="") for receipt in log]
    assert [bool(hash_) for hash_ in receipts.digest_hash] == [bool(receipt.body_digest) for receipt in log]
    assert len(set(receipts.digest_hash.tolist())) == len({receipt.body_digest for receipt in log})
    assert [number == 0 for number in receipts.id_number] == [not receipt.unique_message_id for receipt in log]


def test_many_channels_are_told_apart():
    """There are more triples than fit into a table of all possible ones."""
    log = [
        Receipt(number, f"{number}", connection_id=f"c{number}", destination=f"d{number}", receiver_id=f"r{number}")
        for number in range(300)
    ]
    receipts = ingested([*log, *log], rows=1000)
    assert len(receipts.channels) == 300
    assert [receipts.channels[number].receiver_id for number in receipts.channel_number] == 2 * [
        f"r{number}" for number in range(300)
    ]


def test_written_forms_of_one_destination_share_a_number():
    log = [
        Receipt(1, "a", destination=name) for name in ("orders", "queue://orders", "Queue<orders>", "topic://orders")
    ]
    receipts = ingested(log, key="destination")
    assert receipts.domains == ["queue://orders", "topic://orders"]
    assert receipts.domain_of_channel.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("key", "lacking", "named"),
    [
        ("default", {"connection_id"}, "connection_id"),
        ("default", {"destination"}, "destination"),
        ("destination", {"destination"}, "destination"),
        ("connection", {"connection_id"}, "connection_id"),
        ("receiver", {"receiver_id"}, "receiver_id"),
    ],
)
def test_a_key_whose_column_the_whole_log_lacks_is_refused_by_name(key, lacking, named):
    with pytest.raises(LogFormatError, match=f"no column {named}.*'{key}'") as caught:
        ingested([Receipt(1, "a")], key=key, lacking=lacking)
    assert f"--map {named}=FIELD (in Python: column_map)" in caught.value.hint
    assert ("--domain destination needs no connection" in caught.value.hint) is (lacking == {"connection_id"})


def test_a_custom_domain_needs_no_column():
    lacking = {"connection_id", "destination", "receiver_id", "message_source_id", "jms_redelivered", "body_digest"}
    receipts = ingested([Receipt(1, "a"), Receipt(2, "a")], key="name:all", lacking=lacking)
    assert receipts.domains == ["all"]
    assert receipts.sources == [""]
    assert receipts.redelivered is None
    assert receipts.digest_hash is None


def test_batches_without_rows_still_count():
    first, second = batches([Receipt(1, "a"), Receipt(2, "b")], rows=1)
    lines = [StatusLine(5, {"rDupIds": 7.0})]
    empty = LogBatch(first.received_at_us[:0], first.unique_message_id[:0], skipped=3, status_lines=lines)
    receipts = ingest(Batches([empty, first, second, empty], set(Receipt._fields)), domain_key("default"))
    assert len(receipts.received_at_us) == 2
    assert receipts.skipped == 6
    assert receipts.status_lines == [*lines, *lines]
