"""The arguments of `receiver bridge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from receiver.bridge.options import MissingIds, Mode

__all__ = [
    "BridgeMode",
    "ConnectionId",
    "Expiry",
    "FromPasswordFile",
    "IdProperty",
    "MaxBatchIntervalMillis",
    "MaxBatchSize",
    "MaxBodyBytes",
    "MaxTries",
    "MetricsPort",
    "MissingId",
    "OtherPolicy",
    "ReceiverId",
    "Record",
    "Source",
    "SourceProperty",
    "StatusSecs",
    "StopWhenIdle",
    "Store",
    "Target",
    "TlsCa",
    "TlsCert",
    "TlsKey",
    "ToPasswordFile",
    "Verbose",
    "Window",
]

Source = Annotated[
    str,
    typer.Argument(
        metavar="FROM",
        help="stomp://[USER@]HOST[:61613]/queue/NAME, amqp://[USER@]HOST[:5672]/queue/NAME, or "
        "/topic/NAME?subscription=SUB; ?selector=CONDITION (behind a subscription &selector=) takes some of them. stomps:// and amqps:// with TLS.",
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TO",
        help="file:PATH or - for JSON Lines, stomp://... or amqp://..., or python:MODULE:FUNCTION, called with "
        "(message, connection) or (message).",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="sqlite:///FILE or postgresql://USER@HOST/DATABASE; all but BEST_EFFORT need one."
    ),
]
BridgeMode = Annotated[Mode, typer.Option("--mode", help="What is promised.")]
ConnectionId = Annotated[
    str | None,
    typer.Option(metavar="ID", help="What domains call this connection. [default: HOST:PORT, and /SUB of a topic]"),
]
ReceiverId = Annotated[
    str | None,
    typer.Option(metavar="ID", help="This receiver's name in its domain: for a topic, or with --domain receiver."),
]
IdProperty = Annotated[str, typer.Option(metavar="NAME", help="The property with a message's id.")]
SourceProperty = Annotated[str, typer.Option(metavar="NAME", help="The property with the id of its source.")]
MissingId = Annotated[
    MissingIds,
    typer.Option(help="For a message without id: message-id takes its JMSMessageID, refuse parks it."),
]
Window = Annotated[
    int | None,
    typer.Option(metavar="W", help="The domain's window in ids per source; with --expiry. [default: as it is]"),
]
Expiry = Annotated[
    float | None, typer.Option(metavar="E", help="The domain's expiry in seconds; with --window. [default: as it is]")
]
OtherPolicy = Annotated[
    str | None, typer.Option("--policy", metavar="POLICY", help="Another system's rule, as of receiver compare.")
]
MaxBatchSize = Annotated[
    int | None, typer.Option(metavar="N", help="Messages in a batch. [default: {bridge.max_batch_size}]")
]
MaxBatchIntervalMillis = Annotated[
    int | None,
    typer.Option(
        metavar="MS", help="How long a batch may go on growing. [default: {bridge.max_batch_interval_millis}]"
    ),
]
MaxBodyBytes = Annotated[
    int | None, typer.Option(metavar="BYTES", help="The largest body that is taken. [default: {bridge.max_body_bytes}]")
]
MaxTries = Annotated[
    int | None,
    typer.Option(metavar="N", help="Tries of a message that fails, before it is parked. [default: {bridge.max_tries}]"),
]
Record = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Record receipts for receiver simulate: .jsonl.zst, .parquet or a folder."),
]
StatusSecs = Annotated[
    float | None,
    typer.Option(metavar="S", help="How often the status line is logged; 0: never. [default: {bridge.status_secs}]"),
]
MetricsPort = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS:]PORT",
        help="Serve metrics to Prometheus on this port: to this machine alone, unless an address is given, such as 0.0.0.0 "
        "for all that it has.",
    ),
]
StopWhenIdle = Annotated[
    float | None, typer.Option(metavar="SECS", min=0, help="Stop once no message has come for so long.")
]
FromPasswordFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Its first line is the password for FROM.")]
ToPasswordFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Its first line is the password for TO.")]
TlsCa = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Whose certificates are trusted. [default: the system's]")
]
TlsCert = Annotated[Path | None, typer.Option(metavar="FILE", help="Our own certificate; with --tls-key.")]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="The key of that certificate.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Log more, with tracebacks of failing functions.")]
