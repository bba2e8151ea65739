"""The way to a broker: a connection, through TLS where the address says so, and in words why there is none."""

from __future__ import annotations

import socket
import ssl
from typing import NoReturn

from receiver.bridge.address import BrokerAddress, Tls
from receiver.errors import BrokerError, BrokerRefusedError, SettingsError

__all__ = ["ANSWER_SECS", "CLOSE_SECS", "PIECE_BYTES", "WOULD_WAIT", "connected", "failure", "mute"]

ANSWER_SECS = 30.0
"""How long a broker may neither answer nor take what is sent before it counts as lost."""
CLOSE_SECS = 5.0
"""How long it may take to say goodbye."""
PIECE_BYTES = 64 << 10
WOULD_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def connected(address: BrokerAddress, answer_secs: float) -> socket.socket:
    """A socket that doesn't wait; with TLS, the broker has proved by its certificate that it is the host of this name.

    `SettingsError` if files of certificates and keys can't be used, `BrokerError` if there is no such broker.
    """
    context = _context(address.files) if address.tls else None
    try:
        link = socket.create_connection((address.host, address.port), answer_secs)
        try:
            # Frames are small, and answers are waited for: without this each might take 40 ms.
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                link = context.wrap_socket(link, server_hostname=address.host)
        except BaseException:
            link.close()
            raise
    except TimeoutError as error:
        raise mute(address, answer_secs) from error
    except (OSError, UnicodeError) as error:
        raise failure(address, error) from error
    link.settimeout(0)
    return link


def mute(address: BrokerAddress, answer_secs: float) -> BrokerError:
    """What it means that one says nothing who was asked something."""
    speaks = f"{address.protocol.upper()}{' through TLS' if address.tls else ''}"
    return BrokerError(
        f"{address}: no answer in {answer_secs:g} s", hint=f"see that it is well, and that its port speaks {speaks}"
    )


def failure(address: BrokerAddress, error: Exception, what: str = "can't be reached") -> BrokerError:
    """What an error of a socket means, before or after it was connected."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerRefusedError(
            f"{address} can't be trusted: {error.verify_message}",
            hint="name the certificate of its authority (--tls-ca), and the host as its own certificate does",
        )
    if isinstance(error, ssl.SSLError):
        why = (error.reason or str(error)).replace("_", " ").lower()
        if " alert " in why:
            return BrokerRefusedError(
                f"{address} refuses the connection: {why}",
                hint="it may ask for a certificate of its own authority: --tls-cert and --tls-key",
            )
        return BrokerError(f"{address} {what}: {why}", hint="is this the port that speaks TLS?")
    why = getattr(error, "strerror", None) or str(error) or "no answer"
    return BrokerError(f"{address} {what}: {why}", hint="see that it runs, and that the address is right")


def _context(files: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
    except OSError as error:
        raise _unreadable(f"certificates of authorities from {files.ca_file}", error) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.cert_file is not None:
        try:
            context.load_cert_chain(files.cert_file, files.key_file, password=_refuse_to_ask)
        except (OSError, ValueError) as error:
            raise _unreadable(f"a certificate and its key from {_both(files)}", error) from error
    return context


def _both(files: Tls) -> str:
    return f"{files.cert_file}" if files.key_file is None else f"{files.cert_file} and {files.key_file}"


def _unreadable(what: str, error: Exception) -> SettingsError:
    why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return SettingsError(f"can't read {what}: {why}", hint="name files in PEM, the key's too unless it is in the same")


def _refuse_to_ask() -> NoReturn:
    """Instead of the terminal, which would be waited for."""
    raise ValueError("the key is locked by a password")
