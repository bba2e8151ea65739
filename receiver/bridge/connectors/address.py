"""The address of a queue or topic, such as `stomp://bridge@host:61613/queue/orders`."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import NamedTuple, Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from receiver.bridge.options import Tls
from receiver.errors import SettingsError, StoreCorruptError
from receiver.masking import masked

PORTS = {"stomp": 61613, "stomps": 61613, "amqp": 5672, "amqps": 5671, "kafka": 9092, "kafkas": 9092}
"""The default ports by scheme; those ending in s use TLS. Artemis serves STOMP on one port, with TLS or without."""
_KAFKA, _STREAM = "kafka", "stream"
_FORMS = ", ".join(
    [f"{scheme}://USER@HOST:{PORTS[scheme]}/queue/NAME" for scheme in ("stomp", "amqp")]
    + [
        ".../topic/NAME?subscription=SUB",
        "amqp://USER@HOST:5672/stream/NAME",
        "kafka://USER@HOST:9092/TOPIC?group=GROUP",
    ]
)
_OPTIONS = {"subscription": "NAME", "selector": "CONDITION", "vhost": "NAME"}
_KAFKA_OPTIONS = {
    "group": "GROUP",
    "start": "earliest|latest",
    "lost": "PARTITION:OFFSET",
    "session": "SECS",
    "mechanism": "NAME",
    "transactions": "yes|no",
}
_STREAM_OPTIONS = {"start": _KAFKA_OPTIONS["start"], "lost": "OFFSET", "vhost": "NAME"}
"""The options that may follow ?, and the form of their values."""
_OF_SOURCES = {"subscription", "selector", "group", "start", "lost", "session"}
_OF_TARGETS = {"transactions"}
"""Options that only one end of a bridge has."""

STREAM_POSITION = "next"
"""The name of a stream's position. Its value is the offset behind the last message taken, a space, and that message's digest."""
_HOSTS = re.compile(r"((?:[^/?#]*//)?(?:[^/?#]*@)?)([^/?#]*)(.*)", re.DOTALL)
"""The part before the hosts, the hosts, and the rest."""
_OF_KAFKA = re.compile(r"([^?/]+)\?group=(.+)", re.DOTALL)  # no topic has a ? in its name, nor a slash


class Node(NamedTuple):
    """Host and port of one broker, or of one node of a cluster."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """One queue or topic of one broker, or of a cluster, by any of its nodes."""

    protocol: str
    """The scheme without the s of TLS: `stomp`, `amqp` or `kafka`."""
    host: str
    port: int
    others: tuple[Node, ...] = ()
    """The further nodes of the cluster."""
    tls: bool = False
    files: Tls = field(default_factory=Tls)
    """The certificates for TLS. The address as text doesn't have them."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    is_topic: bool = False
    is_stream: bool = False
    """Whether the queue is a stream of RabbitMQ, which keeps its messages."""
    name: str
    subscription: str | None = None
    """The durable subscription from which messages of a topic are taken."""
    selector: str | None = None
    """Which messages to take, as in JMS: a condition on their properties, such as `amount > 100`."""
    vhost: str | None = None
    """The broker's virtual host; None for its default."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The other options behind `?`: for streams `start` and `lost`, for Kafka also `session`, `mechanism` and `transactions`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `PROTOCOL://[USER[:PASSWORD]@]HOST[:PORT][,...]/[queue/|topic/|stream/]NAME[?OPTION=VALUE[&...]]`.

        Each part may have percent escapes. Several hosts are nodes of one cluster. The options are `subscription`, `selector`,
        `vhost` and those in `options`. A bare `/NAME` is a queue; with Kafka a topic, whose subscription is a group.

        Raises:
            SettingsError: The text has another form.
        """
        parts, nodes = _split(text)
        is_kafka = parts.scheme.removesuffix("s") == _KAFKA
        kind, slash, rest = parts.path.removeprefix("/").partition("/")
        is_kind = not is_kafka and kind in {"queue", "topic", _STREAM} and (bool(slash) or not rest)
        name = _unescaped(rest if is_kind else parts.path.removeprefix("/"), text)
        is_stream = is_kind and kind == _STREAM
        if is_stream and parts.scheme.startswith("stomp"):
            raise SettingsError(
                f"{masked(text)!r:.200}: STOMP doesn't keep track of streams",
                hint="take it by AMQP: amqp://HOST/stream/NAME",
            )
        known = _KAFKA_OPTIONS if is_kafka else _STREAM_OPTIONS if is_stream else _OPTIONS
        options = _options(parts.query, text, known)
        is_topic = is_kafka or (is_kind and kind == "topic")
        if not name:
            raise SettingsError(f"{masked(text)!r:.200} names no queue or topic", hint=f"write {_FORMS}")
        if "subscription" in options and not is_topic:
            raise SettingsError(
                "a queue has no subscription", hint="write /topic/NAME?subscription=SUB, or leave it out"
            )
        return cls(
            protocol=parts.scheme.removesuffix("s"),
            host=nodes[0].host,
            port=nodes[0].port,
            others=nodes[1:],
            tls=parts.scheme.endswith("s"),
            user=None if parts.username is None else _unescaped(parts.username, text),
            password=None if parts.password is None else _unescaped(parts.password, text),
            is_topic=is_topic,
            is_stream=is_stream,
            name=name,
            subscription=options.pop("group" if is_kafka else "subscription", None),
            selector=options.pop("selector", None),
            vhost=options.pop("vhost", None),
            options=options,
        )

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, including the first."""
        return (Node(self.host, self.port), *self.others)

    @property
    def hosts(self) -> str:
        """The nodes as text: `HOST:PORT`, separated by commas."""
        return ",".join(map(str, self.nodes))

    @property
    def finds_nodes(self) -> bool:
        """Whether a client that has reached one node finds the others by itself, as Kafka's does."""
        return self.protocol == _KAFKA

    def at(self, node: Node) -> Self:
        """The address with only this node."""
        return replace(self, host=node.host, port=node.port, others=())

    @property
    def destination(self) -> str:
        """The destination by which domains are named: `queue://NAME` or `topic://NAME`."""
        return f"{'topic' if self.is_topic else 'queue'}://{self.name}"

    @property
    def keeps_what_is_taken(self) -> bool:
        """Whether the broker keeps every message, so that consumers must know how far they have read: Kafka, and streams."""
        return self.protocol == _KAFKA or self.is_stream

    @property
    def positions_of(self) -> str:
        """The name under which a store keeps the positions of a stream, or of a group in a topic of Kafka."""
        return f"stream/{self.name}" if self.is_stream else f"{self.name}?group={self.subscription}"

    @property
    def target_name(self) -> str:
        """The target's name in a store: without the user, who may change one day."""
        return str(replace(self, user=None, options={}))

    def may_be(self, other: BrokerAddress) -> bool:
        """Whether both may be the same queue or topic of one broker, although a host may have several names, and each protocol
        a port of its own; or of one cluster, if they share a node."""
        is_of_another_port = (self.protocol, self.tls) != (other.protocol, other.tls)
        if (self.protocol == _KAFKA) != (other.protocol == _KAFKA):
            return False
        return (
            self.destination == other.destination
            and (self.vhost == other.vhost or None in {self.vhost, other.vhost})
            and any(
                (mine.port == theirs.port or is_of_another_port) and _are_one_host(mine.host, theirs.host)
                for mine in self.nodes
                for theirs in other.nodes
            )
        )

    @property
    def begins_late(self) -> bool:
        """Whether only messages from now on are wanted (`?start=latest`)."""
        start = self.options.get("start", "earliest")
        if start not in {"earliest", "latest"}:
            raise SettingsError(f"{self}: start is earliest or latest")
        return start == "latest"

    @property
    def takes_turns(self) -> bool:
        """Whether to send messages there in turns, each a transaction: to Kafka, unless `?transactions=no`."""
        wanted = self.options.get("transactions", "yes")
        if wanted not in {"yes", "no"}:
            raise SettingsError(f"{self}: transactions is yes or no")
        return self.protocol == _KAFKA and wanted == "yes"

    def with_password(self, password: str | None) -> Self:
        """The address with this password. Unchanged if that is None, or if the address has a password. `SettingsError` for one that
        no protocol can express: a variable of the environment may hold any bytes."""
        if password is None or self.password is not None:
            return self
        try:
            password.encode()
        except UnicodeEncodeError:
            raise SettingsError(f"{self}: its password isn't UTF-8", hint="write it in UTF-8") from None
        return replace(self, password=password)

    def with_tls(self, files: Tls) -> Self:
        """The address with these certificates; `SettingsError` if it uses no TLS."""
        if files != Tls() and not self.tls:
            raise SettingsError(f"{self} uses no TLS, so certificates are of no use", hint=f"write {self.protocol}s://")
        return replace(self, files=files)

    def __str__(self) -> str:
        """The address without its password."""
        user = "" if self.user is None else f"{quote(self.user, safe='')}@"
        kind = "topic/" if self.is_topic else "stream/" if self.is_stream else "queue/"
        kind = "" if self.protocol == _KAFKA else kind
        options = "&".join(f"{name}={quote(value, safe='')}" for name, value in _given(self).items())
        more = f"?{options}" if options else ""
        return f"{self.protocol}{'s' * self.tls}://{user}{self.hosts}/{kind}{quote(self.name, safe='/')}{more}"


def check_options(address: BrokerAddress, *, of_target: bool = False) -> None:
    """Raise `SettingsError` for an option that only a target has; or only a source, if it is `of_target`."""
    if unfit := _given(address).keys() & (_OF_SOURCES if of_target else _OF_TARGETS):
        direction = "come from" if of_target else "go"
        raise SettingsError(
            f"{address}: {', '.join(sorted(unfit))} is for where messages {direction}", hint="leave it out"
        )


def _given(address: BrokerAddress) -> dict[str, str]:
    """The options behind `?`, by name."""
    subscription = "group" if address.protocol == _KAFKA else "subscription"
    given = {
        subscription: address.subscription,
        "selector": address.selector,
        "vhost": address.vhost,
        **address.options,
    }
    return {name: value for name, value in given.items() if value is not None}


class NamedPosition(NamedTuple):
    """The parts of a position, and the offset that is taken next. None: the position isn't of that kind."""

    topic: str | None = None
    group: str | None = None
    partition: int | None = None
    stream: str | None = None
    next_offset: int | None = None


def position_named(source: str, name: str, position: str) -> NamedPosition:
    """The parts of a position in a store; all None for another kind of source, such as one of the application's own.

    `source` is `BrokerAddress.positions_of`. In a topic, `name` is a partition's number. A stream has one position.
    """
    offset = position.partition(" ")[0]
    if not offset.isdecimal():
        return NamedPosition()
    if name.isdecimal() and (kafka := _OF_KAFKA.fullmatch(source)):
        return NamedPosition(topic=kafka[1], group=kafka[2], partition=int(name), next_offset=int(offset))
    if name == STREAM_POSITION and source.startswith("stream/"):
        return NamedPosition(stream=source.removeprefix("stream/"), next_offset=int(offset))
    return NamedPosition()


def _are_one_host(name: str, other: str) -> bool:
    return name == other or not _hosts(name).isdisjoint(_hosts(other))


def _hosts(name: str) -> set[str]:
    """The IP addresses of a host's name now; all loopback addresses count as one."""
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError:  # connecting there will raise it
        return set()
    return {"localhost" if ip_address(address).is_loopback else address for address in addresses}


def offset_of(position: str) -> tuple[int, str]:
    """The offset of a stored position, and the text behind it; `StoreCorruptError` if there is no offset."""
    offset, _, rest = position.partition(" ")
    try:
        return int(offset), rest
    except ValueError:
        raise StoreCorruptError(f"{position!r:.80} isn't an offset", hint="restore a copy") from None


def is_broker(text: str) -> bool:
    """Whether a text is meant to be the address of a broker."""
    return text.partition(":")[0] in PORTS


def is_secure(text: str) -> bool:
    """Whether a text is meant to be the address of a broker with TLS."""
    return is_broker(text) and text.partition(":")[0].endswith("s")


def _split(text: str) -> tuple[SplitResult, tuple[Node, ...]]:
    """The parts of an address with only its first host, and all its hosts; `SettingsError` if it is no address."""
    if not isinstance(text, str):
        raise SettingsError(f"{text!r:.200} isn't a broker's address", hint=f"write {_FORMS}")
    found = _HOSTS.fullmatch(text)
    assert found is not None  # noqa: S101 - any text matches
    before, hosts, behind = found.groups()
    split: list[SplitResult] = []
    nodes: list[Node] = []
    for host in hosts.split(","):
        which = f": {host!r:.80} is no HOST:PORT" if "," in hosts and "@" not in behind else ""
        no_address = SettingsError(f"{masked(text)!r:.200} isn't a broker's address{which}", hint=f"write {_FORMS}")
        try:
            parts = urlsplit(_checked(before + host + behind))
            name, port = parts.hostname, parts.port
        except ValueError:
            raise no_address from None
        if "@" in parts.path:  # it may be the rest of a password
            raise SettingsError(f"{masked(text)!r:.200} has an @ behind the host", hint="write %40 for @, %2F for /")
        if parts.scheme not in PORTS or not name or " " in name or parts.fragment:
            raise no_address
        node = Node(name, PORTS[parts.scheme] if port is None else port)
        if node in nodes:
            raise SettingsError(f"{masked(text)!r:.200} names {node} twice", hint="name each host once")
        split.append(parts)
        nodes.append(node)
    return split[0], tuple(nodes)


def _checked(text: str) -> str:
    """The text; `ValueError` if a character isn't Unicode, or would be dropped, such as a line break or a tab."""
    if any(letter < " " or "\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError(text)
    return text


def _unescaped(part: str, text: str) -> str:
    """The part without percent escapes. Invalid UTF-8 is refused: otherwise two names might become one."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise _not_utf8_error(text) from None


def _not_utf8_error(text: str) -> SettingsError:
    return SettingsError(f"{masked(text)!r:.200} has an escape that isn't UTF-8", hint="write %C3%A9 for é")


def _options(query: str, text: str, known: Mapping[str, str]) -> dict[str, str]:
    try:
        given = parse_qsl(query, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise _not_utf8_error(text) from None
    options = dict(given)
    if len(given) != len(options) or not options.keys() <= known.keys() or not all(options.values()):
        *but_last, last = (f"{name}={value}" for name, value in known.items())
        raise SettingsError(
            f"{masked(text)!r:.200}: after ? only {', '.join(but_last)} and {last} are known", hint=f"write {_FORMS}"
        )
    return options
