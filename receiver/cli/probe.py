"""`receiver probe`: see how a broker redelivers, before a bridge depends on it."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from receiver.cli.fields import with_fields
from receiver.cli.options import AsJson, FromPasswordFile, TlsFiles, password_of
from receiver.cli.output import console, print_json, stages

EPILOG = """Examples:

receiver probe amqp://localhost/queue/scratch

receiver probe stomps://bridge@host:61613/queue/scratch --patience 300 --json

Give the password in the variable RECEIVER_FROM_PASSWORD, in a file, or in the address.
"""


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
        float, typer.Option(metavar="SECS", min=1, help="Wait so long for the messages of a consumer that fell silent.")
    ] = 90.0,
    as_json: AsJson = False,
    from_password_file: FromPasswordFile = None,
    tls: TlsFiles,
) -> None:
    """See how your broker redelivers, and which W and E that needs.

    The command sends messages to a scratch queue. Consumers take them and end in four ways: closed, killed, killed while
    they acknowledge, and frozen as if their host had lost the network. It prints what came again, when, in which order
    and how it was flagged. It also tries selectors, and whether the broker drops known ids. This takes two minutes. The
    queue is empty afterwards.
    """
    from receiver.bridge.connectors.address import BrokerAddress
    from receiver.bridge.probing import probe as probed
    from receiver.report.json_object import dumped
    from receiver.report.probing import print_probe, probe_object

    address = BrokerAddress.parse(queue).with_password(password_of("FROM", from_password_file)).with_tls(tls)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no consumer outlives this
    with stages("Probing") as say:
        figures = probed(address, messages=messages, patience_secs=patience, say=say)
    if as_json:
        print_json(dumped(probe_object(figures)))
    else:
        print_probe(figures, console())
