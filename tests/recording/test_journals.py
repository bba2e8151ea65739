"""A journal broken off anywhere holds just the batches that it says were committed, and knows of which it can't tell."""

from pathlib import Path

from recorded import ids, read, receipt, unfinished

from receiver.logs.journal import scanned
from receiver.message import Receipt, ReceiptRow
from receiver.recording import Recorder
from receiver.settings import Recording


def rows(*numbers):
    return [
        row(number, each.unique_message_id, each.message_source_id, each.received_at_us)
        for number, each in zip(numbers, map(receipt, numbers), strict=True)
    ]


def row(seq, id_, source, received_at_us) -> ReceiptRow:
    return ReceiptRow(seq, received_at_us, None, source, id_)


def journal_of(folder) -> Path:
    (path,) = unfinished(folder)
    return path


def test_every_cut(tmp_path):
    """With whatever a power cut may have left behind it."""
    with Recorder(tmp_path, writer=1, store_id=2) as recorder:
        ends = []  # of each batch, and of what says that it was committed
        for number in range(1, 4):
            recorder.write(number, rows(number), [(1, receipt(10 + number, body_digest="x"))])
            written = journal_of(tmp_path).stat().st_size
            recorder.commit(number)
            ends.append((written, journal_of(tmp_path).stat().st_size))
        data = journal_of(tmp_path).read_bytes()
    torn = tmp_path / ".torn-20260101T000000.000000Z-1.jsonl.zst.journal"
    for cut in range(len(data) + 1):
        for tail in (b"", b"\0" * 40, b"garbage" * 9):
            left = data[:cut] + tail  # the tail may happen to be what was cut off
            torn.write_bytes(left)
            scan = scanned([left])
            whole = [(left.startswith(data[:written]), left.startswith(data[:said])) for written, said in ends]
            committed = [number for number, (_, said) in enumerate(whole, start=1) if said]
            uncertain = [number for number, (written, said) in enumerate(whole, start=1) if written and not said]
            assert list(scan.uncertain) == uncertain
            if committed:
                assert ids(read(torn)) == [f"id-{n}" for number in committed for n in (number, 10 + number)]


def test_a_batch_that_is_cut_off(tmp_path):
    """With those behind it, whatever was said of those before."""
    with Recorder(tmp_path, writer=1, store_id=2) as recorder:
        for number in range(1, 5):
            recorder.write(number, rows(number), [])
        for number in (4, 3):
            recorder.cut(number)
        recorder.write(5, rows(5), [])
        for number in (1, 2, 5):
            recorder.commit(number)
    assert (recorder.written, recorder.dropped) == (3, 0)
    assert ids(read(tmp_path)) == ["id-1", "id-2", "id-5"]


def test_no_file_is_begun_while_a_batch_is_uncertain(tmp_path):
    with Recorder(Recording(tmp_path, rotate_bytes=1)) as recorder:
        recorder.write(1, rows(1), [])
        recorder.write(2, rows(2), [])
        recorder.commit(1)
        assert len(unfinished(tmp_path)) == 1
        recorder.commit(2)
        recorder.flush()
        assert ids(read(tmp_path)) == ["id-1", "id-2"]


def test_texts_of_several_lines(tmp_path):
    """Each stands as it is, among others that are kept another way."""
    texts = ["a", "b\nc", "", "\n", "d"]
    with Recorder(tmp_path) as recorder:
        recorder.write(1, [row(1, text, text, 5) for text in texts if text], [(2, Receipt(None, "s", 4))])
        recorder.commit(1)
        recorder.write(2, rows(1, 2), [])
        recorder.commit(2)
    receipts_read = read(tmp_path)
    assert ids(receipts_read) == ["a", "b\nc", "", "\n", "d", "id-1", "id-2"]
    assert [each.message_source_id for each in receipts_read] == ["a", "b\nc", "s", "\n", "d", None, None]


def test_what_a_killed_process_kept_in_memory_alone(tmp_path):
    """No store can tell of it, so a batch was committed once that was said."""
    with Recorder(tmp_path) as recorder:
        recorder.write(1, rows(1), [])
        recorder.commit(1)
        recorder.write(2, rows(2), [])
        data = journal_of(tmp_path).read_bytes()
        recorder.cut(2)
    (tmp_path / ".receipts-20260101T000000.000000Z-1.jsonl.zst.journal").write_bytes(data)
    Recorder(tmp_path).close()
    assert unfinished(tmp_path) == []
    assert ids(read(tmp_path)) == ["id-1", "id-1"]
