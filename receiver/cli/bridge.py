"""`receiver bridge`: messages off a broker, into a file, another broker or a function, each once."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from receiver.bridge.options import IdRule, MissingIds, Mode
from receiver.cli.options import Domain, FromPasswordFile, TlsCa, TlsCert, TlsKey, password_of
from receiver.cli.serving import Listening, load_metrics, serve
from receiver.cli.streams import plain_output
from receiver.errors import SettingsError
from receiver.settings import BridgeSettings, IdReuse, ReceiverSettings

if TYPE_CHECKING:
    from receiver.bridge.bridge import Bridge

__all__ = ["EPILOG", "bridge"]

_LOGGER = logging.getLogger("receiver.bridge")
_IDS = IdRule()

EPILOG = """Examples:

receiver bridge stomp://user@host:61613/queue/orders file:orders.jsonl --store sqlite:///receiver.db

receiver bridge 'amqp://host/topic/prices?subscription=desk1' python:desk:book --store postgresql://host/desk

receiver bridge 'kafka://host/orders?group=desk1' file:orders.jsonl --store postgresql://host/desk

receiver bridge stomp://host/orders amqp://other/orders --store sqlite:///receiver.db --record receipts.jsonl.zst

receiver bridge amqp://host/queue/orders file:orders.jsonl --store sqlite:///receiver.db --ids order_ids:from_json

receiver bridge amqp://host/queue/orders amqp://other/queue/orders --store sqlite:///receiver.db --duplicates-to file:again.jsonl

Give passwords in the variables RECEIVER_FROM_PASSWORD, RECEIVER_TO_PASSWORD and RECEIVER_DUPLICATES_TO_PASSWORD, in files,
or in the addresses.
"""

_Source = Annotated[
    str,
    typer.Argument(
        metavar="FROM",
        help="Where messages come from: stomp://[USER@]HOST[:61613]/queue/NAME, amqp://[USER@]HOST[:5672]/queue/NAME, "
        "/topic/NAME?subscription=SUB instead of /queue/NAME, kafka://[USER@]HOST[:9092]/TOPIC?group=GROUP, or "
        "amqp://.../stream/NAME (RabbitMQ). ?selector=CONDITION takes only the messages that meet it, ?vhost=NAME chooses "
        "a virtual host; a second option begins with &. stomps://, amqps:// and kafkas:// use TLS.",
    ),
]
_Target = Annotated[
    str,
    typer.Argument(
        metavar="TO",
        help="Where messages go: file:PATH or - for JSON Lines; stomp://..., amqp://... or kafka://...; or "
        "python:MODULE:FUNCTION, called with (message, connection) or (message); a first parameter named messages gets a list.",
    ),
]
_DuplicatesTo = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET",
        help="Where duplicates go, as TO: each at least once, with the properties receiverDuplicateOf (when the id first came) "
        "and receiverBodyDiffers. [default: they are only counted]",
    ),
]
_Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="sqlite:///FILE or postgresql://USER@HOST/DATABASE. Every mode but BEST_EFFORT needs it."
    ),
]
_BridgeMode = Annotated[Mode, typer.Option("--mode", help="What the bridge promises.")]
_ConnectionId = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="This connection's name in its domain. [default: HOST:PORT, with ?vhost= and /SUB if given]",
    ),
]
_ReceiverId = Annotated[
    str | None,
    typer.Option(metavar="ID", help="This receiver's name in its domain. For a topic, or with --domain receiver."),
]
_IdProperty = Annotated[str, typer.Option(metavar="NAME", help="The property with a message's id.")]
_SourceProperty = Annotated[str, typer.Option(metavar="NAME", help="The property with the id of its source.")]
_IdFunction = Annotated[
    str | None,
    typer.Option(
        "--ids",
        metavar="MODULE:FUNCTION",
        help="A function that takes a message and returns (id, source), instead of the two properties. A message has "
        ".properties, .headers, .body, .is_text and .message_id.",
    ),
]
_MissingId = Annotated[
    MissingIds,
    typer.Option(help="What to do with a message without id: message-id takes its JMSMessageID, refuse parks it."),
]
_IdReuse = Annotated[
    IdReuse | None,
    typer.Option(
        help="What to do with a known id that comes with another body: duplicate drops the message, deliver hands it on. "
        "[default: {receiver.id_reuse}]",
        show_default=False,
    ),
]
_Window = Annotated[
    int | None,
    typer.Option(metavar="W", help="The domain's window W in ids per source; needs --expiry. [default: the domain's]"),
]
_Expiry = Annotated[
    float | None,
    typer.Option(metavar="E", help="The domain's expiry E in seconds; needs --window. [default: the domain's]"),
]
_OtherPolicy = Annotated[
    str | None,
    typer.Option(
        "--policy", metavar="POLICY", help="Follow another system's rule. receiver compare --help lists them."
    ),
]
_MaxBatchSize = Annotated[
    int | None, typer.Option(metavar="N", help="The most messages in a batch. [default: {bridge.max_batch_size}]")
]
_MaxBatchIntervalMillis = Annotated[
    int | None,
    typer.Option(
        metavar="MS", help="A batch ends so long after its first message. [default: {bridge.max_batch_interval_millis}]"
    ),
]
_MaxBodyBytes = Annotated[
    int | None,
    typer.Option(metavar="BYTES", help="Stop at a message with a larger body. [default: {bridge.max_body_bytes}]"),
]
_MaxTries = Annotated[
    int | None,
    typer.Option(metavar="N", help="Park a message that has failed so often. [default: {bridge.max_tries}]"),
]
_Record = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Record the receipts for receiver simulate: a .jsonl.zst, a .parquet or a folder."
    ),
]
_StatusSecs = Annotated[
    float | None,
    typer.Option(metavar="S", help="Log the status line every S seconds; 0: never. [default: {bridge.status_secs}]"),
]
_MetricsPort = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS:]PORT",
        help="Serve metrics to Prometheus. Without ADDRESS only this machine can ask for them; 0.0.0.0 stands for all of "
        "its IPv4 addresses.",
    ),
]
_HealthPort = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS:]PORT",
        help="Serve /livez and /readyz to a supervisor such as Kubernetes. Without ADDRESS on all IPv4 addresses of this "
        "machine. With this option the bridge waits for brokers that can't be reached at the start.",
    ),
]
_StuckAfterSecs = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        help="/livez fails after S seconds without progress; 0: never. [default: {bridge.stuck_after_secs}]",
    ),
]
_StopWhenIdle = Annotated[
    float | None, typer.Option(metavar="SECS", min=0, help="Stop once no message has come for SECS seconds.")
]
_ToPasswordFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file whose first line is the password for TO.")
]
_Verbose = Annotated[bool, typer.Option("--verbose", help="Log more, and a traceback if your function fails.")]


def bridge(
    source: _Source,
    target: _Target,
    *,
    store: _Store = None,
    mode: _BridgeMode = Mode.EXACTLY_ONCE,
    domain: Domain = "default",
    connection_id: _ConnectionId = None,
    receiver_id: _ReceiverId = None,
    id_property: _IdProperty = _IDS.id_property,
    source_property: _SourceProperty = _IDS.source_property,
    ids: _IdFunction = None,
    missing_ids: _MissingId = _IDS.missing,
    id_reuse: _IdReuse = None,
    window: _Window = None,
    expiry: _Expiry = None,
    policy: _OtherPolicy = None,
    duplicates_to: _DuplicatesTo = None,
    max_batch_size: _MaxBatchSize = None,
    max_batch_interval_millis: _MaxBatchIntervalMillis = None,
    max_body_bytes: _MaxBodyBytes = None,
    max_tries: _MaxTries = None,
    record: _Record = None,
    status_secs: _StatusSecs = None,
    metrics_port: _MetricsPort = None,
    health_port: _HealthPort = None,
    stuck_after_secs: _StuckAfterSecs = None,
    stop_when_idle: _StopWhenIdle = None,
    from_password_file: FromPasswordFile = None,
    to_password_file: _ToPasswordFile = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    verbose: _Verbose = False,
) -> None:
    """Hand a queue's messages on to a file, a broker or a function.

    A topic's durable subscription and a stream do as well as a queue. Each message is kept with its id in the store before it is acknowledged, and handed on once, whatever dies in
    between. The status line goes to standard error every {bridge.status_secs} seconds. SIGTERM or Ctrl-C stops the
    bridge after the current batch, a second one at once. Neither loses a message.
    """
    from receiver.bridge.connectors.address import Tls
    from receiver.bridge.opening import BridgeOptions, open_bridge

    _logging_to_stderr(verbose=verbose)
    metrics = None if metrics_port is None else Listening.of("--metrics-port", metrics_port, "127.0.0.1")
    health = None if health_port is None else Listening.of("--health-port", health_port, "0.0.0.0")  # noqa: S104 - Kubernetes asks from outside
    if metrics is not None:
        load_metrics()  # now, before a python: target puts the current folder on sys.path
    options = BridgeOptions(
        mode=mode,
        domain=domain,
        connection_id=connection_id,
        receiver_id=receiver_id,
        ids=IdRule(id_property=id_property, source_property=source_property, function=ids, missing=missing_ids),
        windows=_windows(window, expiry),
        policy=policy,
        id_reuse=id_reuse,
        duplicates_to=duplicates_to,
        record=record,
        settings=_bridge_settings(locals()),
        tls=Tls(ca_file=tls_ca, cert_file=tls_cert, key_file=tls_key),
        from_password=password_of("FROM", from_password_file),
        to_password=password_of("TO", to_password_file),
        duplicates_to_password=password_of("DUPLICATES_TO", None),
    )
    with (
        plain_output(),  # a target's: nothing counts as delivered that nobody reads
        closing(open_bridge(source, target, store, options)) as opened,
        _stopped_by_signals(opened),
        _logging_status(opened, options.settings.status_secs),
    ):
        serve(opened, metrics, health)
        opened.run(stop_when_idle_secs=stop_when_idle, waits_at_start=health is not None)


def _windows(window: int | None, expiry_secs: float | None) -> ReceiverSettings | None:
    if window is None and expiry_secs is None:
        return None
    if window is None or expiry_secs is None:
        raise SettingsError(
            "--window and --expiry go together", hint="give both, or neither for those that the domain has"
        )
    return ReceiverSettings(
        dup_detection_per_source_expiry_window_size=window, dup_detection_expiry_time_secs=expiry_secs
    )


def _bridge_settings(options: Mapping[str, Any]) -> BridgeSettings:
    """The settings of these options' names, each of which has one; what isn't given is as by default."""
    given = {each.name: options[each.name] for each in fields(BridgeSettings)}
    return BridgeSettings(**{name: value for name, value in given.items() if value is not None})


def _logging_to_stderr(*, verbose: bool) -> None:
    """Log lines as a correlator does, so that what reads its logs reads the status lines too."""
    from receiver.durable.status import LOG_FORMAT

    logging.basicConfig(format=LOG_FORMAT, stream=sys.stderr)
    # Not each duplicate: the status line counts them.
    logging.getLogger("receiver").setLevel(logging.DEBUG if verbose else logging.WARNING)
    _LOGGER.setLevel(logging.DEBUG if verbose else logging.INFO)


@contextmanager
def _stopped_by_signals(bridge: Bridge) -> Iterator[None]:
    """Stop the bridge cleanly at the first SIGTERM or Ctrl-C, and the process at the second.

    After Ctrl-C there is a KeyboardInterrupt once it has stopped.
    """
    interrupts = 0

    def stop(number: int, _frame: object) -> None:
        nonlocal interrupts
        if bridge.is_stopping:
            os._exit(128 + number)
        interrupts += number == signal.SIGINT
        bridge.stop()
        # What is under way may take its time, so this goes past the log, whose lock another thread may hold.
        with suppress(OSError):
            os.write(2, b"stopping after what is under way; a second signal ends it at once\n")

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if interrupts:
        raise KeyboardInterrupt


@contextmanager
def _logging_status(bridge: Bridge, status_secs: float) -> Iterator[None]:
    """Log the status line every `status_secs` seconds (0: never) and at the end."""
    ended = threading.Event()
    if status_secs > 0:
        thread = threading.Thread(target=_log_status, args=(bridge, status_secs, ended), name="Status", daemon=True)
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if status_secs > 0:
            thread.join()


def _log_status(bridge: Bridge, status_secs: float, ended: threading.Event) -> None:
    while True:
        is_last = ended.wait(status_secs)
        if not bridge.has_started:
            if is_last:
                return
            continue
        _LOGGER.info("%s", bridge.status_line())
        if is_last:
            return
