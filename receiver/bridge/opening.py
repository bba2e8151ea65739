"""Makes a bridge from two addresses, a store and options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import quote

from receiver.bridge import connectors
from receiver.bridge.bridge import Bridge, Pace
from receiver.bridge.connectors.address import BrokerAddress, is_broker, is_secure
from receiver.bridge.connectors.nodes import ConnectionFactory, Nodes
from receiver.bridge.consumers import Consumers
from receiver.bridge.modes import Figures, Flow
from receiver.bridge.modes.controlled_flow import ConsumerFlow, ControlledFlow
from receiver.bridge.modes.direct_flow import DirectFlow
from receiver.bridge.modes.inbox_flow import Dispatcher, InboxFlow
from receiver.bridge.options import BridgeOptions, IdRule, MissingIds, Mode, Tls
from receiver.bridge.received import Intake, Passed
from receiver.bridge.targets import Target
from receiver.bridge.targets.broker_target import BrokerTarget, SinkTarget, TurnTarget
from receiver.bridge.targets.file_target import FileTarget, StandardOutput
from receiver.bridge.targets.python_target import PythonTarget, check_takes_message, function_named
from receiver.durable.opening import MEMORY, check_concurrent
from receiver.durable.receiver import Receiver
from receiver.errors import SettingsError
from receiver.masking import masked
from receiver.policies.interface import Use
from receiver.policies.names import refuse_unfit, stated_policy
from receiver.senders import SequenceIdMaker
from receiver.settings import IdReuse, checked_id_reuse
from receiver.store.databases import store_url
from receiver.store.inbox import Inbox

_RING = "is both source and target, so each message would come back"
_MIXED = "is for messages and for duplicates, so nobody could tell them apart"
_MOST_AT_ONCE = 50
"""The most messages that one of several consumers takes at once for a function of single messages."""
_MOST_AHEAD = 5
"""The limit if the prefetch is fixed at the subscription: then it must suit slow functions too."""
_TARGETS = "write file:PATH, - for standard output, stomp://..., amqp://... or kafka://..., or python:MODULE:FUNCTION"


class Origin(NamedTuple):
    """A source of messages, by a client of your own."""

    connect: Callable[[], connectors.Source]
    """Makes a connected source. It is called at the start, and after each `BrokerError` of a source."""
    connection_id: str
    destination: str
    """`queue://NAME` or `topic://NAME`. The domain is named by this and `connection_id`."""


def open_bridge(
    from_: str | Origin,
    to: str | Target | Callable[..., object],
    store: str | None = None,
    options: BridgeOptions | None = None,
) -> Bridge:
    """Make a bridge from a queue or a durable subscription to a target. `Bridge.run` connects to the brokers.

    Args:
        from_: The address of a queue, as in `receiver bridge`, or an `Origin` for a client of your own.
        to: The target, as in `receiver bridge`, a `Target`, or a function, which gets lists if it calls them `messages`.
        store: The store: `sqlite:///file` or `postgresql+psycopg://…`. Only BEST_EFFORT needs none.
        options: The mode, the domain and the rest.

    Raises:
        SettingsError: An argument is invalid, or two of them contradict each other.
        StoreError: The store can't be reached, is damaged, or belongs to a newer version.
        MissingExtraError: The library of a protocol isn't installed.
    """
    if not isinstance(options, BridgeOptions | None):
        raise SettingsError(f"options must be BridgeOptions, not {options!r:.80}", hint="give BridgeOptions(...)")
    if not isinstance(from_, str | Origin):
        raise SettingsError(
            f"a bridge takes from an address or an Origin, not {from_!r:.80}", hint="write amqp://HOST/queue/NAME"
        )
    if isinstance(from_, Origin) and not callable(from_.connect):
        raise SettingsError(
            f"an Origin's connect must be a function, not {from_.connect!r:.80}", hint="give one that makes a source"
        )
    options = options or BridgeOptions()
    origin = _origin(from_, options) if isinstance(from_, str) else from_
    _check(from_, to, store, options)
    address = store if store is not None and options.mode.keeps else MEMORY
    with ExitStack() as opened:
        ids = _with_function(options.ids)
        targets = _targets(opened, to, options)
        _check_targets(targets, address, options)
        receiver = opened.enter_context(_receiver(address, origin, options))
        _check_policy(receiver.figures().policy)  # if none is named, the domain has one
        passed = Passed(receiver.store_id)
        for each in targets:
            if isinstance(each, SinkTarget):
                each.passed = passed
        intake = Intake(ids, passed, destination=origin.destination, domain=receiver.domain)
        make = _single if options.consumers is None else _several
        bridge = make(origin.connect, targets, receiver, intake, options, address=address)
        opened.pop_all()
    return bridge


def _targets(opened: ExitStack, to: str | Target | Callable[..., object], options: BridgeOptions) -> list[Target]:
    """The target, and that for duplicates if there is one. `opened` closes them."""
    targets = [_target(to, options, options.to_password)]
    opened.callback(targets[0].close)
    if options.duplicates_to is not None:
        targets.append(_target(options.duplicates_to, options, options.duplicates_to_password))
        opened.callback(targets[1].close)
    return targets


def _receiver(address: str, origin: Origin, options: BridgeOptions) -> Receiver:
    return Receiver.open(
        address,
        connection_id=origin.connection_id,
        destination=origin.destination,
        receiver_id=options.receiver_id,
        domain=options.domain,
        settings=options.windows,
        policy=options.policy,
        observe_only=not options.mode.detects,
        id_reuse=options.id_reuse,
        store_settings=options.store_settings,
        record=options.record,
        concurrent=options.consumers is not None,
    )


def _nodes(connect: Callable[[], object], targets: Sequence[Target]) -> dict[str, Nodes]:
    """The brokers to which a bridge connects, by role."""
    ends = zip(("source", "target", "duplicates"), (connect, *targets), strict=False)
    nodes = {role: end.nodes for role, end in ends if isinstance(end, ConnectionFactory | SinkTarget)}
    return {role: each for role, each in nodes.items() if each is not None}


def target_name(to: str) -> str:
    """A target's name in stores, from its form for `open_bridge`; `SettingsError` if it is no target.

    Connects to nothing, but imports a function's module.
    """
    return _target(to, BridgeOptions()).name


def _origin(text: str, options: BridgeOptions) -> Origin:
    source = _address(text, options.from_password, options.tls)
    if options.mode.keeps:
        connectors.check_durable(source)
    elif source.is_stream:
        raise SettingsError(f"{source}: BEST_EFFORT can't keep its position", hint="choose another mode")
    if options.consumers is not None and (source.is_topic or source.keeps_what_is_taken):
        raise _consumers_error(
            f"{source} is read by one consumer, or by positions", "let the broker copy its messages to a queue"
        )
    connectors.check_carried(source, options.ids.id_property, options.ids.source_property)
    # Each subscription has its own copy of each message: these copies aren't duplicates.
    more = "" if source.subscription is None else f"/{source.subscription}"
    vhost = "" if source.vhost is None else f"?vhost={quote(source.vhost, safe='')}"
    given = options.connection_id
    # Loads the protocol's library, before a python: target puts the current folder on sys.path.
    connect = connectors.source_factory(source, options.settings.max_body_bytes)
    return Origin(connect, f"{source.hosts}{vhost}{more}" if given is None else given, source.destination)


def _address(text: str, password: str | None, tls: Tls) -> BrokerAddress:
    address = BrokerAddress.parse(text).with_password(password)
    return address.with_tls(tls) if address.tls else address


def _target(to: str | Target | Callable[..., object], options: BridgeOptions, password: str | None = None) -> Target:
    if not isinstance(to, str):
        # A class may have all that its objects have.
        return PythonTarget(_name_of(to), to) if isinstance(to, type) or not isinstance(to, Target) else to
    kind, _, rest = to.partition(":")
    if to == "-":
        return StandardOutput(sys.stdout.buffer)
    if kind == "file" and rest:
        return FileTarget(rest)
    if kind == "python":
        return PythonTarget(to, function_named(rest, "python:"))
    if is_broker(to):
        address = _address(to, password, options.tls)
        turns = connectors.turn_sink_factory(address)
        if turns is not None and options.mode is Mode.EXACTLY_ONCE:
            return TurnTarget(address.target_name, turns, options.ids)
        connect = connectors.sink_factory(address)
        return BrokerTarget(address.target_name, connect, options.ids, adds_duplicate_ids=options.mode.detects)
    hint = _TARGETS if ":" in to or "@" in to else f"write file:{to} for a file; {_TARGETS}"
    raise SettingsError(f"{masked(to)!r:.200} isn't a target", hint=hint)


def _with_function(rule: IdRule) -> IdRule:
    """The rule with its function imported, if it has one."""
    function = rule.function
    if function is None:
        return rule
    name = "the function for ids"
    if isinstance(function, str):
        name = f"--ids {function}"
        function = function_named(function, "--ids ")
    check_takes_message(name, function)
    return replace(rule, function=function)


def _name_of(function: Callable[..., object]) -> str:
    name: str | None = getattr(function, "__qualname__", None)
    if name is None or name.endswith("<lambda>"):
        raise SettingsError(
            f"{function!r:.200} has no name by which the store could know it", hint="give a function made by def"
        )
    return f"python:{function.__module__}:{name}"


def _check_apart(one: object, other: object, why: str) -> None:
    addresses = [BrokerAddress.parse(each) for each in (one, other) if isinstance(each, str) and is_broker(each)]
    if len(addresses) > 1 and addresses[0].may_be(addresses[1]):
        raise SettingsError(
            f"{addresses[1]} {why}",
            hint="name another queue; for another broker on the same host, take both by one protocol",
        )


def _check(from_: object, to: object, store: str | None, options: BridgeOptions) -> None:
    mode, duplicates_to = options.mode, options.duplicates_to
    if duplicates_to is not None and not mode.detects:
        raise SettingsError(
            f"{mode} drops no duplicates, so none can be kept", hint="leave out --duplicates-to, or choose another mode"
        )
    _check_apart(from_, to, _RING)
    _check_apart(from_, duplicates_to, _RING)
    _check_apart(to, duplicates_to, _MIXED)
    if options.tls != Tls() and not any(is_secure(str(each)) for each in (from_, to, duplicates_to)):
        raise SettingsError("certificates are of no use without TLS", hint="write stomps://, amqps:// or kafkas://")
    for part, given in {"connection": options.connection_id, "receiver": options.receiver_id}.items():
        if given == "":
            raise SettingsError(f"the {part} id is empty", hint=f"leave it out, or give a name (--{part}-id)")
    if options.policy is not None:
        _check_policy(options.policy)
    if mode.keeps and store in {None, MEMORY}:
        raise SettingsError(
            f"{mode} needs a store that outlives its process",
            hint="--store sqlite:///receiver.db, or --mode BEST_EFFORT",
        )
    if not mode.keeps and options.ids.missing is MissingIds.REFUSE:
        raise SettingsError(f"{mode} can't park messages without id", hint="choose another mode")
    _check_consumers(store, options)


def _check_policy(text: str) -> None:
    refuse_unfit(stated_policy(text)[0], Use.BRIDGE, text)


def _check_targets(targets: Sequence[Target], address: str, options: BridgeOptions) -> None:
    mode = options.mode
    for target in targets:
        if isinstance(target, FileTarget) and address != MEMORY and target.is_store(store_url(address)):
            raise SettingsError(f"{target.name} is the store", hint="name another file for the messages")
        if isinstance(target, PythonTarget) and target.takes_part and not mode.keeps:
            raise SettingsError(
                f"{target.name} takes a connection, and {mode} has none to give",
                hint="choose another mode, or a function that takes the message alone",
            )
        if options.consumers is not None and not isinstance(target, PythonTarget):
            raise _consumers_error(f"{target.name} takes messages in order", "name a function (python:MODULE:FUNCTION)")
    if len({target.name for target in targets}) < len(targets):
        raise SettingsError(f"{targets[0].name} {_MIXED}", hint="name another target for duplicates")


def _check_consumers(store: str | None, options: BridgeOptions) -> None:
    """Raise `SettingsError` unless the bridge has one consumer, or its other options allow more."""
    count = options.consumers
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SettingsError(f"a bridge has at least 1 consumer, not {count!r:.80}", hint="--consumers 16")
    if not options.mode.detects:
        raise _consumers_error(f"{options.mode} hands duplicates on", f"choose --mode {Mode.APP_CONTROLLED}")
    if options.duplicates_to is not None:
        raise _consumers_error("duplicates aren't kept", "leave out --duplicates-to")
    if checked_id_reuse(options.id_reuse) is IdReuse.DELIVER:
        raise _consumers_error("bodies aren't compared before a message is handed on", "leave out --id-reuse deliver")
    try:
        check_concurrent(store or MEMORY)
    except SettingsError as error:
        raise _consumers_error(error.message, "--store postgresql://USER@HOST/DATABASE") from error


def _consumers_error(why: str, hint: str) -> SettingsError:
    return SettingsError(f"--consumers can't be given: {why}", hint=f"{hint}; or leave out --consumers")


def _single(
    connect: Callable[[], connectors.Source],
    targets: Sequence[Target],
    receiver: Receiver,
    intake: Intake,
    options: BridgeOptions,
    *,
    address: str,
) -> Bridge:
    """A bridge that takes messages one batch after another."""
    figures = Figures(nodes=_nodes(connect, targets))
    flow = _flow(address, targets, receiver, figures, options)
    bridge = Bridge(connect, flow, intake=intake, settings=options.settings)
    for each in targets:
        if isinstance(each, PythonTarget):
            each.on_progress = bridge.health.note_progress
    return bridge


def _several(
    connect: Callable[[], connectors.Source],
    targets: Sequence[Target],
    receiver: Receiver,
    intake: Intake,
    options: BridgeOptions,
    *,
    address: str,
) -> Consumers:
    """A bridge of several consumers."""
    (target,) = targets
    assert isinstance(target, PythonTarget)  # noqa: S101 - no other has passed
    settings, paces, count = options.settings, not target.takes_many, options.consumers or 1
    if paces:
        settings = replace(settings, max_batch_size=min(settings.max_batch_size, _MOST_AT_ONCE))
    most_ahead = settings.max_batch_size
    ours = connectors.connectors_of(connect.nodes.address) if isinstance(connect, ConnectionFactory) else None
    if paces and ours is not None and ours.is_prefetch_fixed:
        most_ahead = min(most_ahead, _MOST_AHEAD)
    inbox = Inbox(address, domain_id=receiver.domain_id, target=target.name, store_settings=options.store_settings)
    bridges = []
    for number in range(count):
        own = copy(target)  # a target has state while it delivers
        dispatcher = Dispatcher(inbox, own, Figures(nodes=_nodes(connect, [])), settings)
        bridge = Bridge(
            # Limited, so that the first to connect doesn't get all messages.
            connect.of_its_own(most_ahead=most_ahead) if isinstance(connect, ConnectionFactory) else connect,
            ConsumerFlow(receiver, dispatcher, serves_inbox=number == 0),
            intake=intake,
            settings=settings,
            consumers=count,
            pace=Pace() if paces else None,
        )
        own.on_progress = bridge.health.note_progress
        bridges.append(bridge)
    return Consumers(bridges, target.name)


def _flow(
    address: str, targets: Sequence[Target], receiver: Receiver, figures: Figures, options: BridgeOptions
) -> Flow:
    mode, settings, store_settings = options.mode, options.settings, options.store_settings
    target, *for_duplicates = targets
    if mode is Mode.BEST_EFFORT:
        return DirectFlow(receiver, target, figures, settings)
    with ExitStack() as opened:
        inboxes = [
            opened.enter_context(
                Inbox(address, domain_id=receiver.domain_id, target=each.name, store_settings=store_settings)
            )
            for each in targets
        ]
        dispatcher = Dispatcher(inboxes[0], target, figures, settings)
        duplicates = None
        if for_duplicates:
            figures.of_duplicates = Figures()
            duplicates = Dispatcher(inboxes[1], for_duplicates[0], figures.of_duplicates, settings, failures=figures)
        numbers = None
        if mode is Mode.EXACTLY_ONCE and isinstance(target, SinkTarget):
            numbers = SequenceIdMaker.open(address, message_source_id=receiver.domain, store_settings=store_settings)
        opened.pop_all()
    if mode is Mode.APP_CONTROLLED:
        return ControlledFlow(receiver, dispatcher, duplicates)
    return InboxFlow(receiver, dispatcher, duplicates, numbers=numbers)
