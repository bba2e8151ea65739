"""`receiver bridge` takes messages off a broker and hands each on once, to a file, a broker or a function; `receiver probe`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from receiver.bridge.options import BridgeOptions, IdRule
from receiver.cli import options
from receiver.cli.options import Fields, examples, password_of, under_headings, with_fields
from receiver.cli.output import console, plain_output, print_json, stages
from receiver.errors import SettingsError
from receiver.settings import BridgeSettings, ReceiverSettings

if TYPE_CHECKING:
    from receiver.bridge.bridge import Bridge

_LOGGER = logging.getLogger("receiver.bridge")

_Source = Annotated[
    str,
    typer.Argument(
        metavar="FROM",
        help="Where messages come from: stomp://[USER@]HOST[:61613]/queue/NAME, amqp://[USER@]HOST[:5672]/queue/NAME, "
        "/topic/NAME?subscription=SUB instead of /queue/NAME, kafka://[USER@]HOST[:9092]/TOPIC?group=GROUP, or "
        "amqp://.../stream/NAME (RabbitMQ). ?selector=CONDITION takes only the messages that meet it, ?vhost=NAME chooses "
        "a virtual host; a second option begins with &. stomps://, amqps:// and kafkas:// use TLS. Several hosts, HOST,HOST, are "
        "nodes of one cluster.",
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
_Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="sqlite:///FILE or postgresql://USER@HOST/DATABASE. Every mode but BEST_EFFORT needs it."
    ),
]


@examples(
    "receiver bridge stomp://user@host:61613/queue/orders file:orders.jsonl --store sqlite:///receiver.db",
    "receiver bridge 'amqp://host/topic/prices?subscription=desk1' python:desk:book --store postgresql://host/desk",
    "receiver bridge amqp://host/queue/orders python:desk:book --store postgresql://host/desk --consumers 16",
    "receiver bridge 'kafka://host/orders?group=desk1' file:orders.jsonl --store postgresql://host/desk",
    "receiver bridge stomp://host/orders amqp://other/orders --store sqlite:///receiver.db --record receipts.jsonl.zst",
    "receiver bridge amqp://host/queue/orders file:orders.jsonl --store sqlite:///receiver.db --ids order_ids:from_json",
    "receiver bridge amqp://host/queue/orders amqp://other/queue/orders --store sqlite:///receiver.db --duplicates-to file:again.jsonl",
    note="Give passwords in the variables RECEIVER_FROM_PASSWORD, RECEIVER_TO_PASSWORD and RECEIVER_DUPLICATES_TO_PASSWORD, in "
    "files, or in the addresses.",
)
@under_headings(
    {
        "The domain": "--domain --connection-id --receiver-id --window --expiry",
        "Ids": "--id-property --source-property --ids --missing-ids",
        "Duplicates": "--policy --id-reuse --duplicates-to",
        "Batches and failures": "--max-batch-size --max-batch-interval-millis --max-body-bytes --max-tries --consumers",
        "Watching": "--record --status-secs --metrics-port --health-port --stuck-after-secs --verbose",
        "Passwords and TLS": "--from-password-file --to-password-file --tls-ca --tls-cert --tls-key",
    }
)
@with_fields
def bridge(
    source: _Source,
    target: _Target,
    *,
    store: _Store = None,
    domain: options.Domain = "default",
    chosen: Annotated[
        BridgeOptions,
        Fields(
            mode="--mode MODE",
            consumers="--consumers N",
            connection_id="--connection-id ID",
            receiver_id="--receiver-id ID",
            id_reuse="--id-reuse WHAT",
            policy="--policy POLICY",
            duplicates_to="--duplicates-to TARGET",
            record="--record FILE",
        ),
    ],
    rule: Annotated[
        IdRule,
        Fields(
            id_property="--id-property NAME",
            source_property="--source-property NAME",
            function="--ids MODULE:FUNCTION",
            missing="--missing-ids WHAT",
        ),
    ],
    window: Annotated[
        int | None,
        typer.Option(
            metavar="W", help="The domain's window W in ids per source; needs --expiry. [default: the domain's]"
        ),
    ] = None,
    expiry: Annotated[
        float | None,
        typer.Option(metavar="E", help="The domain's expiry E in seconds; needs --window. [default: the domain's]"),
    ] = None,
    settings: Annotated[
        BridgeSettings,
        Fields(
            max_batch_size="--max-batch-size N",
            max_batch_interval_millis="--max-batch-interval-millis MS",
            max_body_bytes="--max-body-bytes BYTES",
            max_tries="--max-tries N",
            status_secs="--status-secs S",
            stuck_after_secs="--stuck-after-secs S",
        ),
    ],
    metrics_port: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS:]PORT",
            help="Serve metrics to Prometheus. Without ADDRESS only this machine can ask for them; 0.0.0.0 stands for all "
            "of its IPv4 addresses.",
        ),
    ] = None,
    health_port: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS:]PORT",
            help="Serve /livez and /readyz to a supervisor such as Kubernetes. Without ADDRESS on all IPv4 addresses of "
            "this machine. With this option the bridge waits for brokers that can't be reached at the start.",
        ),
    ] = None,
    stop_when_idle: Annotated[
        float | None, typer.Option(metavar="SECS", min=0, help="Stop once no message has come for SECS seconds.")
    ] = None,
    from_password_file: options.FromPasswordFile = None,
    to_password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file whose first line is the password for TO.")
    ] = None,
    tls: options.TlsFiles,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Log each duplicate and why it is one, and a traceback if your function fails."),
    ] = False,
) -> None:
    """Hand a queue's messages on to a file, a broker or a function.

    A topic's durable subscription and a stream do as well as a queue. Each message is kept with its id in the store before
    it is acknowledged, and handed on once, whatever dies in between. The status line goes to standard error every
    {bridge.status_secs} seconds. SIGTERM or Ctrl-C stops the bridge after the current batch, a second one at once. Neither
    loses a message.
    """
    from receiver.bridge.opening import open_bridge
    from receiver.cli.serving import Listening, serve

    if source.startswith(("file:", "python:")):
        raise SettingsError(
            f"messages come from a broker, not from {source}", hint="FROM comes before TO, such as amqp://... file:..."
        )
    _logging_to_stderr(verbose=verbose)
    metrics = None if metrics_port is None else Listening.of("--metrics-port", metrics_port, "127.0.0.1")
    health = None if health_port is None else Listening.of("--health-port", health_port, "0.0.0.0")  # noqa: S104 - Kubernetes asks from outside
    if metrics is not None:
        # It raises `MissingExtraError`. And its library is found before a python: target puts the current folder on sys.path.
        import_module("receiver.durable.metrics")
    how = replace(
        chosen,
        domain=domain,
        ids=rule,
        windows=_windows(window, expiry),
        settings=settings,
        tls=tls,
        from_password=password_of("FROM", from_password_file),
        to_password=password_of("TO", to_password_file),
        duplicates_to_password=password_of("DUPLICATES_TO", None),
    )
    with (
        plain_output(),  # for a target: messages that nobody reads mustn't count as delivered
        closing(open_bridge(source, target, store, how)) as opened,
        _stopped_by_signals(opened),
        _logging_status(opened, settings.status_secs),
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


def _logging_to_stderr(*, verbose: bool) -> None:
    """Log lines in a correlator's format, so that tools for its logs also read these status lines."""
    from receiver.durable.status import LOG_FORMAT

    logging.basicConfig(format=LOG_FORMAT, stream=sys.stderr)
    # WARNING leaves out single duplicates, which the status line counts.
    logging.getLogger("receiver").setLevel(logging.DEBUG if verbose else logging.WARNING)
    _LOGGER.setLevel(logging.DEBUG if verbose else logging.INFO)


@contextmanager
def _stopped_by_signals(bridge: Bridge) -> Iterator[None]:
    """Stop the bridge cleanly at the first SIGTERM or Ctrl-C, and the process at the second.

    After Ctrl-C, raise KeyboardInterrupt once the bridge has stopped.
    """
    interrupts = 0

    def stop(number: int, _frame: object) -> None:
        nonlocal interrupts
        if bridge.is_stopping:
            os._exit(128 + number)
        interrupts += number == signal.SIGINT
        bridge.stop()
        # Stopping may take time, so say so. Not by the log, whose lock another thread may hold.
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
    if status_secs == 0:
        yield
        return
    ended = threading.Event()

    def log() -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(min(status_secs, threading.TIMEOUT_MAX))
            if bridge.has_started:
                _LOGGER.info("%s", bridge.status_line())

    thread = threading.Thread(target=log, name="Status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@examples(
    "receiver probe amqp://localhost/queue/scratch",
    "receiver probe stomps://bridge@host:61613/queue/scratch --patience 300 --json",
    note="Give the password in the variable RECEIVER_FROM_PASSWORD, in a file, or in the address.",
)
@with_fields
def probe(
    queue: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="A scratch queue, written as for receiver bridge. It must be empty, and nobody else may use it.",
        ),
    ],
    *,
    messages: Annotated[int, typer.Option(metavar="N", help="How many messages to send.")] = 1_000,
    patience: Annotated[
        float,
        typer.Option(metavar="SECS", min=1, help="Wait this long for the messages of a consumer that fell silent."),
    ] = 90.0,
    as_json: options.AsJson = False,
    from_password_file: options.FromPasswordFile = None,
    tls: options.TlsFiles,
) -> None:
    """Test how your broker redelivers, and which W and E that needs.

    The command sends messages to a scratch queue. Consumers take them and end in four ways: closed, killed, killed while
    they acknowledge, and frozen as if their host had lost the network. It prints what came again, when, in which order
    and how it was flagged. It also tries selectors, and whether the broker drops known ids. This takes two minutes. The
    queue is empty afterwards.
    """
    from receiver.bridge.connectors.address import BrokerAddress
    from receiver.bridge.probing import probe as probed
    from receiver.report.probing import print_probe, probe_object

    address = BrokerAddress.parse(queue).with_password(password_of("FROM", from_password_file)).with_tls(tls)
    with stages("Probing") as say:
        figures = probed(address, messages=messages, patience_secs=patience, say=say)
    if as_json:
        print_json(probe_object(figures))
    else:
        print_probe(figures, console())
