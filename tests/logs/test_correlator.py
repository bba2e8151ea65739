"""The correlator's log: received messages, status lines, and bodies that look like either."""

from datetime import UTC, datetime

import pytest
from reading import opened, read, read_skipping, refusal

from receiver.errors import SettingsError

BANNER = "2017-03-05 15:56:20.000 ##### [140] - Correlator, version 9.12\n"
STATUS = (
    "2017-03-05 15:56:24.484 INFO  [19636:Status] - JMS Status: s=1 tx=0 sRate=0 sOutst=0 r=1 rx=6,182 rRate=0 "
    "rWindow=0 rRedel=3 rMaxDeliverySecs=1,002.5 rDupsDet=0 rDupIds=12,345,678 connErr=0 jvmMB=63\n"
)
FIRST = 1488737856091000


def message(text_id, *, secs=36, source="s1", body='"hello"', name="orders", more="", jms=True):
    header = f"2017-03-05 18:17:{secs:02d}.091 INFO  [27192:JMSReceiver:{name}] - '{name}' has received JMS message:"
    fields = [f" Property.uniqueMessageId={text_id}", f"   Property.messageSourceId={source}"]
    if jms:
        fields += ["   JMSDestination=Topic<prices>", "   JMSMessageID=ID:1", "   JMSRedelivered=true",
                   "   JMSTimestamp=1488737856000", "   JMSDeliveryMode=NON_PERSISTENT", "   MessageClass=TextMessage"]  # fmt: skip
    if more:
        fields.append(more)
    if body is not None:
        fields.append(f"   Body={body}")
    return header + "\n".join(fields) + "\n"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "correlator.log"


def ids(log, **options):
    return [row.unique_message_id for row in read(log, **options)]


@pytest.mark.usefixtures("tiny_blocks")
def test_a_message_and_a_status_line(log):
    log.write_text(BANNER + STATUS + message("1:a") + STATUS + message("2:a", secs=37))
    first, second = read(log)
    assert first == (FIRST, "1:a", "s1", "", "Topic<prices>", "orders", True, 1488737856000, "")
    assert second.received_at == FIRST + 1_000_000
    status = [line for batch in opened(log) for line in batch.status_lines]
    assert len(status) == 2
    assert status[0].logged_at_us == int(datetime(2017, 3, 5, 15, 56, 24, 484000, tzinfo=UTC).timestamp() * 1e6)
    assert status[0].values["rx"] == 6182
    assert status[0].values["rMaxDeliverySecs"] == 1002.5
    assert status[0].values["rDupIds"] == 12_345_678
    batches = opened(log)
    list(batches)
    assert "connection_id" in batches.columns_present
    assert "body_digest" not in batches.columns_present


def test_local_times_are_read_in_the_zone(log):
    log.write_text(message("a"))
    assert read(log, time_zone="Europe/Paris")[0].received_at == FIRST - 3_600_000_000


@pytest.mark.usefixtures("tiny_blocks")
def test_properties_count_before_the_body_only_and_the_first_of_a_name_wins(log):
    body = '"text\n   Property.uniqueMessageId=body\n   JMSRedelivered=false\nend"'
    log.write_text(message("a", more="   Property.uniqueMessageId=second", body=body) + message("b", body=body))
    assert ids(log) == ["a", "b"]
    assert all(row.jms_redelivered for row in read(log))


def test_mapped_properties_and_headers(log):
    log.write_text(message("a", more="   Property.key=k1=2"))
    mapped = {"unique_message_id": "key", "message_source_id": "JMSMessageID", "connection_id": "messageSourceId"}
    row = read(log, column_map=mapped)[0]
    assert row[1:4] == ("k1=2", "ID:1", "s1")


def test_a_property_that_no_message_has_is_an_error_that_names_those_there_are(log):
    log.write_text(message("a").replace("uniqueMessageId", "orderId"))
    error = refusal(log)
    assert error.location == str(log)
    assert "no column unique_message_id; there is: 'orderId', 'messageSourceId', 'JMSDestination'" in error.problem
    assert "--map unique_message_id=" in error.hint
    assert "unique_message_id or destination (field 'none')" in refusal(log, column_map={"destination": "none"}).problem
    assert (
        "field 'nothing'" in refusal(log, column_map={"unique_message_id": "orderId", "destination": "nothing"}).problem
    )


def test_a_message_without_the_id_is_unchecked(log):
    log.write_text(message("a") + message("b").replace("uniqueMessageId", "other"))
    assert ids(log) == ["a", ""]


@pytest.mark.usefixtures("tiny_blocks")
def test_values_with_line_breaks_stand_as_they_are(log):
    log.write_text(message("a\nb") + message("a\n\nb") + message("a\n  b = c"))
    assert ids(log) == ["a\nb", "a\n\nb", "a\n  b = c"]


@pytest.mark.usefixtures("tiny_blocks")
def test_a_log_line_quoted_in_a_body_is_no_receipt(log):
    quoted = message("quoted", body=None, jms=False)
    log.write_text(message("a", body=f'"see:\n{quoted}and {STATUS}\nmore text"') + message("b") + STATUS)
    assert ids(log) == ["a", "b"]
    assert sum(len(batch.status_lines) for batch in opened(log)) == 1
    log.write_text(message("a", body=f'"see:\n{quoted}\n{quoted}\n{STATUS}"') + message("b"))
    assert ids(log) == ["a", "b"]
    assert not any(batch.status_lines for batch in opened(log))
    log.write_text(message("a", body=f'"see:\n{quoted.rstrip()}"') + message("b"))
    assert ids(log) == ["a", "b"]


@pytest.mark.usefixtures("tiny_blocks")
def test_a_body_without_an_end_hides_no_message(log):
    log.write_text(message("a", body='"broken off') + message("b", body='"again') + message("c") + message("d"))
    assert ids(log) == ["a", "b", "c", "d"]
    log.write_text(message("a", body='"') + message("b", body=None) + STATUS + message("c", body="<BytesMessage>"))
    assert ids(log) == ["a", "b", "c"]
    assert [len(batch.status_lines) for batch in opened(log) if batch.status_lines] == [1]


@pytest.mark.usefixtures("tiny_blocks")
def test_carriage_returns_belong_to_the_line_break_where_every_line_has_one(log):
    log.write_bytes((message("a") + message("b")).replace("\n", "\r\n").encode())
    assert ids(log) == ["a", "b"]
    log.write_bytes((BANNER + message("a\r") + message("a")).encode())
    assert ids(log) == ["a\r", "a"]


def test_a_receiver_name_may_hold_anything(log):
    for name in ("o'brien", "a]b", "x' y", "café"):
        log.write_text(message("a", name=name), encoding="utf-8")
        assert read(log)[0].receiver_id == name


def test_bytes_that_are_not_utf8(log):
    text = BANNER + message("a") + message("b\udcff") + message("c", body='"\udcff"')
    log.write_bytes(text.encode(errors="surrogateescape"))
    error = refusal(log)
    assert error.location == f"{log}:11"
    assert "unique_message_id is not UTF-8" in error.problem
    rows, skipped = read_skipping(log)
    assert [row.unique_message_id for row in rows] == ["a", "c"]
    assert skipped == 1


def test_a_time_that_never_was_names_the_header(log):
    log.write_text((BANNER + message("a") + message("b")).replace("2017-03-05 18:17", "2017-03-26 02:17"))
    assert refusal(log, time_zone="Europe/Paris").location == f"{log}:2"
    assert read(log)[0].unique_message_id == "a"


def test_a_log_without_messages(log):
    log.write_text(BANNER + STATUS)
    assert "no receipt" in refusal(log).problem


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("body", "id_"),
    [
        ('"<order><id>7</id></order>"', "7"),
        ('"<order>\n<id>7</id>\n</order>"', "7"),
        ('"<id>\n7</id>"', "\n7"),
        ('"<id>7</id> and <id>8</id>"', "7"),
        ('"no id"', ""),
        ('""', ""),
        ("<id>7</id>", "7"),
        (None, ""),
        (f'"said:\n{message("quoted", jms=False, body=None)}<id>7</id>"', "7"),
        (f'"<id>7</id> said:\n{message("quoted", jms=False, body=None)}"', "7"),
    ],
)
def test_an_id_in_the_body_is_found_by_a_regular_expression(log, monkeypatch, size, body, id_):
    monkeypatch.setattr("receiver.logs.source.FIRST_BLOCK_BYTES", size)
    monkeypatch.setattr("receiver.logs.source.BLOCK_BYTES", size)
    log.write_text(BANNER + message("x", body=body) + STATUS + message("y", secs=37, body='"<id>8</id>"'))
    rows = read(log, column_map={"unique_message_id": "Body:<id>([^<]*)</id>"})
    assert [row.unique_message_id for row in rows] == [id_, "8"]
    assert [row.message_source_id for row in rows] == ["s1", "s1"]


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_body_without_an_end_ends_where_the_next_message_begins(log, monkeypatch, size):
    monkeypatch.setattr("receiver.logs.source.FIRST_BLOCK_BYTES", size)
    monkeypatch.setattr("receiver.logs.source.BLOCK_BYTES", size)
    log.write_text(message("x", body='"broken off') + message("y", secs=37, body='"id=8"') + message("z", body='"id=9'))
    rows = read(log, column_map={"unique_message_id": r"Body:id=(\d)"})
    assert [row.unique_message_id for row in rows] == ["", "8", "9"]


def test_without_a_group_the_whole_match_counts(log):
    log.write_text(message("x", body='"order-7 of 9"'))
    assert ids(log, column_map={"unique_message_id": r"Body:order-\d+"}) == ["order-7"]


def test_an_expression_that_finds_nothing_or_is_none(log):
    log.write_text(message("x"))
    assert "no column unique_message_id (field 'Body:nothing')" in str(
        refusal(log, column_map={"unique_message_id": "Body:nothing"})
    )
    with pytest.raises(SettingsError, match="no regular expression"):
        ids(log, column_map={"unique_message_id": "Body:("})
