"""The readers of foreign bytes. Each is a function that takes any bytes: it reads them, or refuses them with our own
error.

`SEEDS` are bytes worth reading. The fuzzer changes them at random.
"""

from __future__ import annotations

import atexit
import gzip
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import proton
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from receiver.bridge.connectors import amqp_message, kafka_message, stomp_message
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.connectors.products import KNOWN
from receiver.errors import ReceiverError
from receiver.logs import ReadOptions, journal, read_logs
from receiver.logs.compacted import MANIFEST, DomainFiles, Manifest, PartFile
from receiver.settings import _read as settings_in

_FOLDER = Path(tempfile.mkdtemp(prefix="receiver-fuzz-"))
atexit.register(shutil.rmtree, _FOLDER)
LINES = [
    {"received_at": "2026-11-21T01:37:48.123456Z", "unique_message_id": "1:gateway", "message_source_id": "gateway"},
    {"received_at": "1795225068711", "unique_message_id": "2:ü\u0000", "jms_redelivered": "true", "jms_timestamp": "5"},
    {"received_at": "1795225068.711", "unique_message_id": "", "destination": "queue://orders", "body_digest": "x"},
]
CORRELATOR = """2017-03-05 18:17:36.091 INFO  [27192:JMSReceiver:r1] - 'r1' has received JMS message: Property.uniqueMessageId=1:s
   Property.messageSourceId=s
   JMSDestination=Queue<orders>
   JMSRedelivered=false
   JMSTimestamp=0
   Body="one
two"
2017-03-05 15:56:24.484 INFO  [19636:Status] - JMS Status: s=1 tx=0 r=1 rx=6,182 rRedel=0 rMaxDeliverySecs=0.0 rDupsDet=0
"""


def _csv() -> str:
    names = ["received_at", "unique_message_id", "message_source_id", "jms_redelivered", "jms_timestamp", "destination"]
    rows = [",".join('"' + line.get(name, "").replace('"', '""') + '"' for name in names) for line in LINES]
    return "\n".join([",".join(names), *rows])


def _parquet() -> bytes:
    written = io.BytesIO()
    names = {name for line in LINES for name in line}
    pq.write_table(pa.table({name: [line.get(name) for line in LINES] for name in sorted(names)}), written)
    return written.getvalue()


def _log(name: str, data: bytes) -> None:
    """Bytes as a log with this name. It is read twice: the second time without its unreadable rows."""
    path = _FOLDER / name
    path.write_bytes(data)
    for on_error in ("stop", "skip"):
        with suppress(ReceiverError):
            for batch in read_logs([str(path)], ReadOptions(on_error=on_error)):
                assert len(batch.unique_message_id) == len(batch.received_at_us)


def _compacted(data: bytes) -> None:
    """Bytes as the manifest of a compacted log, whose other file exists."""
    folder = _FOLDER / "compacted"
    folder.mkdir(exist_ok=True)
    (folder / "part.parquet").write_bytes(_parquet())
    (folder / MANIFEST).write_bytes(data)
    for _ in read_logs([str(folder)], ReadOptions()):
        pass


def _manifest() -> bytes:
    file = PartFile("part.parquet", rows=len(LINES), latest_us=1_795_225_068_711_000)
    domains = [DomainFiles("broker:queue://orders", [file])]
    columns = ["received_at", "unique_message_id"]
    return msgspec.json.encode(Manifest("default", domains, columns, len(LINES), 0, 0))


def _journal() -> bytes:
    """A journal as an earlier version wrote it: a header, a batch, and the note that the batch was committed."""
    batch = msgspec.msgpack.encode((b"a\nb", b"s\n", bytes(16), [(2, (None, "web", 5, True, 5, "x"))]))
    header = msgspec.msgpack.encode(journal.JournalHeader(1, None, "broker", "queue://orders", ""))
    frames = [(-1, header), (1, batch), (1, b"")]
    return journal.JOURNAL_BEGINS + b"".join(
        journal._HEAD.pack(len(payload), journal._checksum(number, payload), number) + payload
        for number, payload in frames
    )


def _stomp(data: bytes) -> None:
    """Bytes as a broker sends them, in pieces."""
    pieces = iter([data[start : start + 7] for start in range(0, len(data), 7)])
    reader = stomp_message.FrameReader(lambda: next(pieces, b""), lambda _: None, max_body_bytes=1_000)
    while (frame := reader.read()) is not None:
        for product in KNOWN:
            if product.stomp is not None:
                stomp_message.decoded(frame, product)


def _amqp(data: bytes) -> None:
    """A message that can be read can be sent on, and arrives as the same message."""
    message = amqp_message.decoded(data)
    if message.refused is None:
        again = amqp_message.decoded(amqp_message.encoded(message))  # raises our own error if the message is unfit
        assert (again.body, again.refused) == (message.body, None)


def _kafka(data: bytes) -> None:
    """A record whose key, header and value are parts of the bytes."""
    first, second, third = data[::3], data[1::3], data[2::3]
    record = SimpleNamespace(
        value=lambda: first or None,
        key=lambda: second or None,
        headers=lambda: [("uniqueMessageId", third), (third.decode("utf-8", "replace"), second)],
        topic=lambda: "orders",
        partition=lambda: 0,
        offset=lambda: 5,
        timestamp=lambda: (1, int.from_bytes(third[:7], "big")),
    )
    kafka_message.encoded(kafka_message.decoded(record))


def _address(data: bytes) -> None:
    BrokerAddress.parse(data.decode("utf-8", "surrogateescape"))


def _settings(data: bytes) -> None:
    path = _FOLDER / "settings.yaml"
    path.write_bytes(data)
    settings_in(path)


def _amqp_seeds() -> Iterator[bytes]:
    for body in ("text", b"bytes", {"a": [1, None, 2.5]}, [1, "b"], None):
        message = proton.Message(
            body=body, id="id", durable=True, properties={"uniqueMessageId": "1:s", "n": 5, "f": 1.5}
        )
        yield message.encode()


def _stomp_seeds() -> Iterator[bytes]:
    for headers in ({"uniqueMessageId": "1:a:b", "redelivered": "true"}, {"timestamp": "5", "JMSXGroupID": "ü"}):
        frame = stomp_message.Frame("MESSAGE", {"message-id": "1", "destination": "/queue/q", **headers}, b"body")
        yield frame.encoded()
        yield stomp_message.Frame("MESSAGE", {**headers, "content-length": "4"}, b"bo\0y").encoded()


def _json_lines() -> bytes:
    return "\n".join(json.dumps(line) for line in LINES).encode()


Read = Callable[[bytes], None]
READERS: dict[str, tuple[Read, list[bytes]]] = {
    "csv": (partial(_log, "log.csv"), [_csv().encode(), gzip.compress(_csv().encode(), mtime=0)]),
    "json-lines": (partial(_log, "log.jsonl"), [_json_lines(), zstandard.compress(_json_lines())]),
    "correlator": (partial(_log, "log.log"), [CORRELATOR.encode()]),
    "parquet": (partial(_log, "log.parquet"), [_parquet()]),
    "journal": (partial(_log, ".log-20260101T000000.000000Z-1.jsonl.zst.journal"), [_journal()]),
    "compacted": (_compacted, [_manifest()]),
    "stomp": (_stomp, list(_stomp_seeds())),
    "amqp": (_amqp, list(_amqp_seeds())),
    "kafka": (_kafka, [b"vkh" * 5, "ükh".encode() * 3]),
    "address": (
        _address,
        [b"amqp://u:p@a:5672,b/queue/o?vhost=x", b"stomp+ssl://[::1]:61613/topic/a?subscription=s", b"kafka://h/t?g=1"],
    ),
    "settings": (_settings, [b"receiver:\n  max_sources: 5\nstore: {lock_timeout_secs: 2}\n", b"a: &x [*x]\n"]),
}


def read(name: str, data: bytes) -> None:
    """Have a reader read the bytes. It may refuse them."""
    with suppress(ReceiverError):
        READERS[name][0](data)
