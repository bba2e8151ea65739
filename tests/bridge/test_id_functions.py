"""Ids from a function: what it may return, and what becomes of a message for which it fails."""

import json
import sys
from enum import IntEnum

import pytest

from receiver.bridge.connectors import Message
from receiver.bridge.opening import BridgeOptions, open_bridge
from receiver.bridge.options import IdRule, MissingIds, Mode
from receiver.errors import MessageRefusedError, SettingsError
from receiver.store.codec import text_of
from receiver.store.upkeep import parked_rows
from tests.bridge.bridged import Route
from tests.stores import engine_of

pytestmark = pytest.mark.thinned(3)


def of_json(message):
    order = json.loads(message.body)
    return order["id"], order.get("source")


def order(**fields):
    return Message(body=json.dumps(fields).encode(), is_text=True)


def ids_kept(route):
    with engine_of(route.store).connect() as connection:
        rows = connection.exec_driver_sql("SELECT unique_message_id, message_source_id FROM receiver_receipt")
        return {tuple(None if value is None else text_of(value) for value in row) for row in rows}


@pytest.mark.parametrize("mode", list(Mode))
def test_ids_come_from_the_body(tmp_path, sqlite_url, mode):
    route = Route(sqlite_url, tmp_path, "call", mode)
    first, again, other = order(id=7, n=1), order(id="7", n=2), order(id=7, source=3, n=3)
    route.send(first, again, other, order(id=8, source="a", n=4))
    bridge = route.run(ids=IdRule(function=of_json))
    handed_on = [json.loads(body)["n"] for body in route.effects()]
    assert handed_on == ([1, 4] if mode.detects else [1, 2, 3, 4])
    assert bridge.receiver.status().rDupsDet == 2
    if mode.keeps:
        assert ids_kept(route) >= {("8", "a")}


class UnshowableError(Exception):
    def __str__(self):
        raise ValueError


def failing(error):
    def fail(message):
        if message.body == b"odd":
            raise error
        return message.body.decode(), None

    return fail


def returning(value):
    return lambda message: value if message.body == b"odd" else (message.body.decode(), None)


async def _asynchronous():
    """A coroutine function, whose coroutine nobody would run."""


FAILING = {
    "an exception": (failing(KeyError("order")), "KeyError: 'order'"),
    "an exit": (failing(SystemExit(3)), "SystemExit: 3"),
    "an error that can't be shown": (failing(UnshowableError()), "UnshowableError"),
    "text with U+0000": (failing(ValueError("a\0b")), "ValueError"),
    "nothing": (returning(None), "it returned None, not (id, source)"),
    "an id alone": (returning("7"), "it returned '7', not (id, source)"),
    "text of two characters": (returning("ab"), "it returned 'ab', not (id, source)"),
    "three": (returning(("7", None, 1)), "not (id, source)"),
    "a list": (returning(["7", None]), "not (id, source)"),
    "a coroutine": (lambda m: _asynchronous() if m.body == b"odd" else (m.body.decode(), None), "nobody runs"),
    "bytes in a list": (returning(([b"7"], None)), "the function's id is [b'7'], neither text nor a whole number"),
    "a truth value": (returning((True, None)), "the function's id is True"),
    "a fraction": (returning((1.0, None)), "the function's id is 1.0"),
    "a source that is a fraction": (returning(("7", 1.5)), "the function's source is 1.5"),
    "a number too large to be shown": (returning((10**5000, None)), "ValueError"),
}


def test_bytes_are_judged(tmp_path, sqlite_url):
    """JMS has bytes in `_AMQ_DUPL_ID`. Different bytes are different ids, and empty bytes are no id."""
    route = Route(sqlite_url, tmp_path, "call")
    ids = [b"\0\xff", b"\0\xfe", b"", b"\0\xff", b""]
    route.send(*(Message(body=b"%d" % n, properties={"key": id_}) for n, id_ in enumerate(ids)))
    rule = IdRule(function=lambda message: (message.properties["key"], b"\1"))
    route.run(ids=rule)
    assert route.effects() == ["0", "1", "2", "4"]
    assert ids_kept(route) == {("0x00ff", "0x01"), ("0x00fe", "0x01")}


def test_bytes_of_a_property_are_parked_with_a_hint(tmp_path, sqlite_url):
    route = Route(sqlite_url, tmp_path, "call")
    route.send(Message(body=b"x", properties={"uniqueMessageId": b"7"}))
    route.run()
    (parked,) = parked_rows(sqlite_url)
    assert "a function (--ids) can return bytes" in parked.error


class Alike(str):
    """Text that calls all text equal."""

    __slots__ = ()

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


class Shop(IntEnum):
    """A number with a name."""

    WEB = 5

    __str__ = IntEnum.__repr__


def test_text_and_numbers_of_other_kinds_are_plain_ids(tmp_path, sqlite_url):
    """Otherwise two ids might count as one, and a message would be lost as a duplicate."""
    route = Route(sqlite_url, tmp_path, "call")
    route.send(*(Message(body=body, is_text=True) for body in (b"1", b"2", b"3", b"2")))
    route.run(ids=IdRule(function=lambda m: (Alike(m.body.decode()), Alike("a"))))
    assert route.effects() == ["1", "2", "3"]
    assert IdRule(function=lambda _: (Shop.WEB, Shop.WEB)).ids_of(Message(body=b"")) == ("5", "5")


@pytest.mark.parametrize("of", ["properties", "headers"])
def test_a_function_can_not_change_a_message(of):
    def change(message):
        getattr(message, of)["amount"] = object()
        return "1", None

    sent = Message(body=b"odd", properties={"amount": 3}, headers={"JMSType": "Order"})
    with pytest.raises(MessageRefusedError, match="does not support item assignment"):
        IdRule(function=change).ids_of(sent)
    assert sent.properties == {"amount": 3}


@pytest.mark.parametrize("what", FAILING)
def test_a_function_that_fails_refuses_the_message_and_says_why(what):
    function, why = FAILING[what]
    rule = IdRule(function=function)
    with pytest.raises(MessageRefusedError) as caught:
        rule.ids_of(Message(body=b"odd"))
    assert why in str(caught.value)
    assert rule.ids_of(Message(body=b"1")) == ("1", None)


def test_best_effort_hands_on_a_message_for_which_the_function_fails(tmp_path, sqlite_url):
    route = Route(sqlite_url, tmp_path, "call", Mode.BEST_EFFORT)
    route.send(*(Message(body=body) for body in (b"1", b"odd", b"odd", b"2")))
    bridge = route.run(ids=IdRule(function=failing(KeyError())))
    assert route.effects() == ["1", "odd", "odd", "2"]
    assert (bridge.figures.parked, bridge.receiver.status().unchecked) == (0, 2)


@pytest.mark.parametrize("id_", [None, ""])
def test_a_missing_id_goes_by_the_rule_for_missing_ids(tmp_path, sqlite_url, id_):
    route = Route(sqlite_url, tmp_path, "call")
    route.send(*(Message(body=body, message_id="ID:7") for body in (b"1", b"2")))
    rule = IdRule(function=lambda _message: (id_, None))
    assert route.run(ids=rule).receiver.status().rDupsDet == 1
    assert route.effects() == ["1"]
    route.send(Message(body=b"3", message_id="ID:8"))
    route.run(ids=IdRule(function=rule.function, missing=MissingIds.REFUSE))
    (row,) = parked_rows(route.store)
    assert "the function gave it no id, and ids are required" in row.error


def test_another_broker_gets_what_the_function_says(tmp_path, sqlite_url):
    route = Route(sqlite_url, tmp_path, "queue")
    route.send(order(id=7, source="web"))
    route.run(ids=IdRule(function=of_json))
    (sent,) = route.broker.queue("out")
    assert (sent.properties["uniqueMessageId"], sent.properties["messageSourceId"]) == ("7", "web")


@pytest.mark.parametrize("more", [{"id_property": "order"}, {"source_property": "shop"}])
def test_a_function_beside_properties_is_refused(more):
    with pytest.raises(SettingsError, match="not from both"):
        IdRule(function=of_json, **more)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("", "--ids  names no function"),
        ("ids_here", "names no function"),
        ("u:PW@h", "--ids"),
        ("no_such:ids", "can't be imported"),
        ("ids_here:no_such", "can't be imported"),
        ("ids_here:number", "isn't a function"),
        ("ids_here:later", "is async or a generator, so calling it does nothing"),
        ("ids_here:two", "can't be called with the message alone"),
        (lambda: None, "the function for ids can't be called with the message alone"),
    ],
)
def test_what_cannot_say_ids_is_refused_before_anything_is_made(tmp_path, monkeypatch, function, why):
    lines = ["number = 1", "async def later(message): ...", "def two(message, other): ..."]
    (tmp_path / "ids_here.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "ids_here", raising=False)
    options = BridgeOptions(ids=IdRule(function=function))
    with pytest.raises(SettingsError) as caught:
        open_bridge(
            "stomp://127.0.0.1:1/queue/orders", f"file:{tmp_path / 'x'}", f"sqlite:///{tmp_path / 'r.db'}", options
        )
    assert why in str(caught.value)
    assert "PW" not in str(caught.value)
    assert not (tmp_path / "r.db").exists()
