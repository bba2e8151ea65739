"""`receiver bridge`: messages off a broker, into a file, another broker or a function, each once."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from receiver.bridge.options import IdRule, MissingIds, Mode
from receiver.cli import bridge_options as given
from receiver.cli.bridging import (
    listening_address,
    load_metrics,
    logging_to_stderr,
    password_of,
    reporting,
    stopped_by_signals,
)
from receiver.cli.reading import Domain
from receiver.cli.streams import plain_output
from receiver.errors import SettingsError
from receiver.settings import BridgeSettings, ReceiverSettings

__all__ = ["EPILOG", "bridge"]

EPILOG = """Examples:

receiver bridge stomp://user@host:61613/queue/orders file:orders.jsonl --store sqlite:///receiver.db

receiver bridge 'amqp://host/topic/prices?subscription=desk1' python:desk:book --store postgresql://host/desk

receiver bridge stomp://host/orders amqp://other/orders --store sqlite:///receiver.db --record receipts.jsonl.zst

Passwords come from RECEIVER_FROM_PASSWORD and RECEIVER_TO_PASSWORD, from files, or from the addresses.
"""


def bridge(
    source: given.Source,
    target: given.Target,
    *,
    store: given.Store = None,
    mode: given.BridgeMode = Mode.EXACTLY_ONCE,
    domain: Domain = "default",
    connection_id: given.ConnectionId = None,
    receiver_id: given.ReceiverId = None,
    id_property: given.IdProperty = "uniqueMessageId",
    source_property: given.SourceProperty = "messageSourceId",
    missing_ids: given.MissingId = MissingIds.MESSAGE_ID,
    window: given.Window = None,
    expiry: given.Expiry = None,
    policy: given.OtherPolicy = None,
    max_batch_size: given.MaxBatchSize = None,
    max_batch_interval_millis: given.MaxBatchIntervalMillis = None,
    max_body_bytes: given.MaxBodyBytes = None,
    max_tries: given.MaxTries = None,
    record: given.Record = None,
    status_secs: given.StatusSecs = None,
    metrics_port: given.MetricsPort = None,
    stop_when_idle: given.StopWhenIdle = None,
    from_password_file: given.FromPasswordFile = None,
    to_password_file: given.ToPasswordFile = None,
    tls_ca: given.TlsCa = None,
    tls_cert: given.TlsCert = None,
    tls_key: given.TlsKey = None,
    verbose: given.Verbose = False,
) -> None:
    """Bridge messages from a queue or a durable subscription to a file, a broker or a function of yours.

    Each is kept with its id in the store before it is acknowledged, and handed on once, whatever dies in between. The
    status line goes to standard error every {bridge.status_secs} seconds. SIGTERM or Ctrl-C ends it after the batch
    under way, a second one at once; nothing is lost by either.
    """
    from receiver.bridge.connectors.address import Tls
    from receiver.bridge.opening import BridgeOptions, open_bridge

    logging_to_stderr(verbose=verbose)
    metrics_address = None if metrics_port is None else listening_address(metrics_port)
    if metrics_address is not None:
        load_metrics()  # now, before a python: target puts the current folder on sys.path
    options = BridgeOptions(
        mode=mode,
        domain=domain,
        connection_id=connection_id,
        receiver_id=receiver_id,
        ids=IdRule(id_property=id_property, source_property=source_property, missing=missing_ids),
        windows=_windows(window, expiry),
        policy=policy,
        record=record,
        settings=BridgeSettings(
            **_given(
                max_batch_size=max_batch_size,
                max_batch_interval_millis=max_batch_interval_millis,
                max_body_bytes=max_body_bytes,
                max_tries=max_tries,
                status_secs=status_secs,
            )
        ),
        tls=Tls(ca_file=tls_ca, cert_file=tls_cert, key_file=tls_key),
        from_password=password_of("FROM", from_password_file),
        to_password=password_of("TO", to_password_file),
    )
    with (
        plain_output(),  # a target's: nothing counts as delivered that nobody reads
        closing(open_bridge(source, target, store, options)) as opened,
        stopped_by_signals(opened),
        reporting(opened, options.settings.status_secs, metrics_address),
    ):
        opened.run(stop_when_idle_secs=stop_when_idle)


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


def _given(**options: float | None) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
