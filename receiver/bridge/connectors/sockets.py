"""Connects to a broker's port, by TLS if the address says so, and explains failures."""

from __future__ import annotations

import socket
import ssl
from errno import EMFILE, ENFILE
from typing import NoReturn, TypeVar

from receiver.bridge.connectors.address import PORTS, BrokerAddress
from receiver.bridge.options import Tls
from receiver.errors import BrokerError, BrokerRefusedError, SettingsError

_E = TypeVar("_E", bound=BrokerError)
ANSWER_SECS = 30.0
"""How long a broker may neither answer nor accept bytes before it counts as lost."""
CLOSE_SECS = 5.0
"""How long it may take to end a connection."""
_HANDSHAKE_SECS = 10.0
"""How long a TLS handshake may take. A port without TLS often waits for more bytes rather than answer."""
PIECE_BYTES = 64 << 10
_SPOKEN = {"stomp": "STOMP 1.2", "amqp": "AMQP 1.0", "kafka": "Kafka"}
_AMQP_0_9_1, _TLS = "AMQP 0-9-1", "TLS"
_BEGINNINGS = {
    b"HTTP/": "HTTP",
    b"AMQP\0\0\x09\x01": _AMQP_0_9_1,
    b"AMQP": _SPOKEN["amqp"],
    b"ERROR": "STOMP",
    b"\x15\x03": _TLS,  # an alert
}
"""The protocol of a port, by the first bytes that it sends."""
ALERT = " alert "
"""It stands in what OpenSSL says of a refusal by the other end."""
_OUT_OF_DATE = {9, 10}
"""OpenSSL's codes for a certificate that isn't valid yet, and for one that has expired."""
WOULD_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def connected(address: BrokerAddress) -> socket.socket:
    """A non-blocking socket to a broker. With TLS, the broker's certificate has been checked against its host name.

    `SettingsError` if files of certificates and keys can't be used, `BrokerError` if the broker can't be reached.
    """
    context = _context(address.files) if address.tls else None
    waits_secs = ANSWER_SECS
    try:
        link = socket.create_connection((address.host, address.port), waits_secs)
        try:
            # Frames are small and wait for answers: without this, each might take 40 ms.
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                waits_secs = min(_HANDSHAKE_SECS, ANSWER_SECS)
                link.settimeout(waits_secs)
                link = context.wrap_socket(link, server_hostname=address.host)
        except BaseException:
            link.close()
            raise
    except TimeoutError as error:
        raise no_answer_error(address, waits_secs) from error
    except (OSError, UnicodeError) as error:
        raise failure(address, error) from error
    link.settimeout(0)
    return link


def no_answer_error(address: BrokerAddress, secs: float | None = None, *, is_met: bool = False) -> BrokerError:
    """The error for a broker without an answer in `secs`, by default `ANSWER_SECS`. `is_met`: it has answered before."""
    return BrokerError(
        f"{address}: no answer in {ANSWER_SECS if secs is None else secs:g} s",
        hint="see its log: it may be short of memory or disk, or the queue full"
        if is_met
        else port_hint(address.protocol, tls=address.tls),
    )


def port_hint(protocol: str, *, tls: bool = False) -> str:
    """The hint for a port that doesn't answer as expected."""
    how, otherwise = ("through", "") if tls else ("without", "s")
    return f"check that it runs, and that this port speaks {_SPOKEN[protocol]} {how} TLS; else write {protocol}{otherwise}://"


def wrong_protocol_error(protocol: str, said: bytes, *, tls: bool = False) -> BrokerError:
    """The error for a port whose first bytes aren't of the protocol. Without bytes: it has ended the connection."""
    expected = _SPOKEN[protocol]
    if not said:
        hint = f"check that this port speaks {expected}, and see its log" if tls else port_hint(protocol)
        return BrokerError("it ends the connection without a word", hint=hint)
    speaks = next((name for begin, name in _BEGINNINGS.items() if said.startswith(begin)), None)
    problem = (
        f"this port speaks {speaks}, not {expected}"
        if speaks
        else f"it doesn't speak {expected} but says {said[:10]!r}"
    )
    if speaks == _TLS:
        hint = f"write {protocol}s://, or name the port without TLS"
    elif speaks == _AMQP_0_9_1 and protocol == "amqp":
        hint = "RabbitMQ before 4.0 speaks it once you run rabbitmq-plugins enable rabbitmq_amqp1_0; others have another port for it"
    else:
        hint = f"name its port for {expected}, by default {PORTS[protocol]}"
    return BrokerError(problem, hint=hint)


def named(address: BrokerAddress, error: _E) -> _E:
    """The error, with the address before its message."""
    return type(error)(f"{address}: {error.message}", hint=error.hint)


def failure(address: BrokerAddress, error: Exception, what: str = "can't be reached") -> BrokerError:
    """The error for an exception of a socket to a broker, before or after it was connected."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "name its authority's certificate (--tls-ca), and write the host as in the broker's certificate"
        if error.verify_code in _OUT_OF_DATE:
            hint = "renew it, or that of its authority, and see that this machine's clock is right"
        return BrokerRefusedError(f"{address} can't be trusted: {error.verify_message}", hint=hint)
    if isinstance(error, ssl.SSLError):
        why = (error.reason or str(error)).replace("_", " ").lower()
        if ALERT in why:
            return alert_error(address, why)
        hint = f"check that this port speaks TLS; without it, write {address.protocol}://"
        return BrokerError(f"{address} {what}: {why}", hint=hint)
    why = getattr(error, "strerror", None) or str(error) or "no answer"
    hint = "check that it runs, and that the address is right"
    if getattr(error, "errno", None) in {EMFILE, ENFILE}:
        hint = "raise the limit of open files (ulimit -n)"
    return BrokerError(f"{address} {what}: {why}", hint=hint)


def alert_error(address: BrokerAddress, why: str) -> BrokerRefusedError:
    hint = "it may want a client certificate: --tls-cert and --tls-key"
    if (own := address.files.cert_file) is not None:
        hint = f"see that {own} isn't out of date, and is of an authority that the broker trusts; its log may say more"
    if "protocol version" in why:
        hint = "let it speak TLS 1.2 or newer"
    return BrokerRefusedError(f"{address} refuses the connection: {why}", hint=hint)


def _context(files: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
    except OSError as error:
        raise _unreadable_error(f"certificates of authorities from {files.ca_file}", error) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.cert_file is not None:
        try:
            context.load_cert_chain(files.cert_file, files.key_file, password=_refuse_to_ask)
        except (OSError, ValueError) as error:
            key = "" if files.key_file is None else f" and {files.key_file}"
            raise _unreadable_error(f"a certificate and its key from {files.cert_file}{key}", error) from error
    return context


def _unreadable_error(what: str, error: Exception) -> SettingsError:
    why = (getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)).replace("_", " ")
    if "PEM lib" in why:  # all that OpenSSL says, whichever of them is missing
        why = "they aren't both there, in PEM"
    hint = "name files in PEM, that of the key too (--tls-key) unless it is in the same"
    return SettingsError(f"can't read {what}: {why}", hint=hint)


def _refuse_to_ask() -> NoReturn:
    """Called for the password of a key: otherwise OpenSSL would ask at the terminal, and wait."""
    raise ValueError("the key is locked by a password")
