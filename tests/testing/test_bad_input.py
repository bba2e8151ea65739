"""The errors for programs that the kit can't judge, and for arguments that it can't take."""

import asyncio
import multiprocessing
import sys
import warnings
from contextlib import suppress

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from receiver.errors import SettingsError
from receiver.testing import NoDatabaseWarning, check_exactly_once
from tests.testing.gallery import take, with_an_inbox
from tests.testing.shop import Checked, report_of

pytestmark = pytest.mark.costly


@pytest.fixture
def checked(sqlite_url, tmp_path):
    return Checked(sqlite_url, tmp_path)


def asks_for_ever(broker, shop):
    engine = shop.opened()
    while True:
        messages = broker.receive(5)
        with engine.begin() as connection:
            for message in messages:
                take(connection, message)
        broker.acknowledge(messages)


async def asks_for_ever_in_a_loop(broker, _shop):
    while True:
        await broker.acknowledge(await broker.receive(5))


async def waits_for_ever(broker, _shop):
    await broker.receive(5)
    await asyncio.Future()


def takes_again_and_again(broker, _shop):
    while broker.receive(5):
        broker.recover()


def takes_nothing(_broker, shop):
    shop.opened()


def acknowledges_nothing(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        with engine.begin() as connection:
            for message in messages:
                take(connection, message)


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("consume", [asks_for_ever, asks_for_ever_in_a_loop, takes_again_and_again])
def test_a_consumer_that_never_ends(checked, consume, kill):
    said = report_of(checked, consume, kill=kill)
    assert said.startswith("consume doesn't end: let it return once receive() gives nothing")
    assert "The program was stopped before " in said
    assert "(test_bad_input.py:" in said
    assert len(said.splitlines()) < 30


@pytest.mark.parametrize("kill", [False, True])
def test_a_consumer_that_does_nothing_for_ever(checked, kill, monkeypatch):
    """The kit notices it in an event loop, and in a process of its own."""
    monkeypatch.setattr("receiver.testing.running.IDLE_SECS", 0.2)
    said = report_of(checked, waits_for_ever, kill=kill)
    assert "The program was stopped as it made no call for 0.2 s (test_bad_input.py:" in said


def test_a_consumer_that_takes_nothing(checked):
    assert report_of(checked, takes_nothing).startswith("consume takes no message, though there are some")


def test_a_consumer_that_acknowledges_nothing(checked):
    assert report_of(checked, acknowledges_nothing).startswith("consume acknowledges nothing of what it takes")


def test_an_effect_that_nobody_sent(checked):
    said = report_of(checked, with_an_inbox, effects=lambda shop: [*shop.ordered(), "17"] if shop.ordered() else [])
    assert said.startswith("effects() has '17', which nobody sent in this story\n")


def test_effects_of_earlier_stories(checked):
    """For example, all stories share one database."""
    everything = []
    said = report_of(
        checked,
        lambda broker, shop: with_an_inbox(broker, shop) or everything.extend(shop.ordered()),
        effects=lambda _: everything,
    )
    assert "before the story began: give consume and effects a second argument, story" in said


def catches_everything(broker, shop):
    engine = shop.opened()
    while messages := broker.receive(5):
        try:
            with engine.begin() as connection:
                for message in messages:
                    take(connection, message)
            broker.acknowledge(messages)
        except:  # noqa: E722, S112
            continue


def suppresses_everything(broker, shop):
    with suppress(BaseException):
        with_an_inbox(broker, shop)


@pytest.mark.parametrize("consume", [catches_everything, suppresses_everything])
def test_a_program_that_outlives_its_crash(checked, consume):
    said = report_of(checked, consume)
    assert said.startswith("the program caught its own crash (ProgramCrash) at test_bad_input.py:")
    assert ": catch Exception, not BaseException\n" in said


def test_a_program_that_outlives_its_crash_in_an_event_loop(tmp_path):
    async def consume(broker, story):
        while True:
            try:
                messages = await broker.receive(5)
                if not messages:
                    return
                with (tmp_path / story).open("a", encoding="utf-8") as file:
                    file.writelines(f"{message.unique_message_id}\n" for message in messages)
                await broker.acknowledge(messages)
            except BaseException:  # noqa: S112, BLE001
                continue

    with pytest.warns(NoDatabaseWarning):
        said = report_of(check_exactly_once, consume, lambda story: lines(tmp_path / story), at_least_once=True)
    assert said.startswith("the program caught its own crash (ProgramCrash) at test_bad_input.py:")


def test_a_program_that_is_killed_catches_nothing(checked):
    checked(catches_everything, kill=True, max_examples=3)


def fails(_broker, shop):
    shop.opened()
    raise ValueError("no such table: payment\nand more")


@pytest.mark.parametrize("kill", [False, True])
def test_a_program_that_fails_by_itself(checked, kill):
    with pytest.raises(AssertionError) as raised:
        checked(fails, kill=kill)
    assert str(raised.value).startswith(
        "the program failed without a fault from outside: ValueError: no such table: payment\n"
    )
    assert kill or isinstance(raised.value.__cause__, ValueError)


async def that_exits_in_a_loop(broker, shop):
    that_exits(broker, shop)


def that_exits(_broker, shop):
    shop.opened()
    sys.exit(0)


@pytest.mark.parametrize("consume", [that_exits, that_exits_in_a_loop])
@pytest.mark.parametrize("kill", [False, True])
def test_a_program_that_exits_does_not_take_the_check_with_it(checked, consume, kill):
    with pytest.raises(AssertionError, match=r"failed without a fault from outside: SystemExit: 0\n"):
        checked(consume, kill=kill)


def lines(path):
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_no_database_is_said_once(tmp_path):
    def consume(broker, story):
        while messages := broker.receive():
            known = lines(tmp_path / story)
            with (tmp_path / story).open("a", encoding="utf-8") as file:
                file.writelines(f"{m.unique_message_id}\n" for m in messages if m.unique_message_id not in known)
            broker.acknowledge(messages)

    with pytest.warns(NoDatabaseWarning, match="it doesn't crash at what it does in a database") as warned:
        check_exactly_once(consume, lambda story: lines(tmp_path / story), max_examples=5)
    assert len(warned) == 1
    assert warned[0].filename == __file__


class CalledInALoop:
    async def __call__(self, broker):
        await broker.receive(5)


def yields(broker):
    yield broker.receive(5)


async def yields_in_a_loop(broker):
    yield await broker.receive(5)


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize(
    ("consume", "error"),
    [
        (CalledInALoop, r"consume is the class CalledInALoop, not an object \(give CalledInALoop\(\)\)"),
        (yields, "consume is a generator, so calling it does nothing .*without `yield`"),
        (yields_in_a_loop, "consume is a generator"),
        (lambda broker: waits_for_ever(broker, None), "consume gives a coroutine .*write it as `async def consume"),
    ],
)
def test_a_consumer_whose_call_does_nothing(consume, error, kill):
    with pytest.raises(SettingsError, match=error):
        check_exactly_once(consume, list, kill=kill)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((None, list), {}, "consume must be a function, not None"),
        ((print, []), {}, "effects must be a function"),
        ((print, list), {"body": b""}, "body must be a function"),
        ((print, list), {"messages": 0}, "messages must be a whole number, 1 or more, not 0"),
        ((print, list), {"messages": 10**9}, "messages must be 100,000 or fewer"),
        ((print, list), {"seed": "monday"}, "seed must be a whole number, not 'monday'"),
        ((print, list), {"seed": True}, "seed must be a whole number, not True"),
        ((print, list), {"max_examples": 1.5}, "max_examples must be a whole number"),
        ((print, list), {"max_examples": True}, "max_examples must be a whole number"),
        ((lambda broker: broker.receive(0), list), {}, "1 or more, not 0"),
        ((lambda broker: broker.receive("5"), list), {}, "1 or more, not '5'"),
        ((print, lambda: [17]), {}, r"effects\(\) must give the unique_message_id .* not \[17\]"),
        ((print, lambda: "17"), {}, "as text, not '17'"),
        ((print, lambda: None), {}, "as text, not None"),
    ],
)
def test_arguments_that_it_cannot_take(arguments, options, error):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoDatabaseWarning)
        with pytest.raises(SettingsError, match=error):
            check_exactly_once(*arguments, **options)


def test_a_database_in_memory_is_said_to_end_with_its_connections():
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id TEXT)"))

    def consume(broker):
        while messages := broker.receive(5):
            with engine.begin() as connection:
                for message in messages:
                    connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": message.unique_message_id})
            broker.acknowledge(messages)

    def effects():
        with engine.connect() as connection:
            return list(connection.scalars(text("SELECT id FROM orders")))

    with pytest.raises(OperationalError, match="no such table: orders") as raised:
        check_exactly_once(consume, effects)
    assert raised.value.__notes__[0].endswith("a database in memory ends with them: use a file")


@pytest.mark.parametrize("effects", [set, dict])
def test_effects_that_cannot_stand_twice_are_warned_of(effects):
    with (
        pytest.warns(UserWarning, match=f"gives a {effects.__name__}, which can't show") as warned,
        pytest.raises(AssertionError),
    ):
        check_exactly_once(print, effects)
    assert [each.filename for each in warned] == [__file__]


def test_no_process_is_left_where_a_body_cannot_be_made():
    def fails(_):
        raise KeyError("body")

    with pytest.raises(KeyError):
        check_exactly_once(lambda broker: broker.receive(1), list, kill=True, body=fails)
    for child in multiprocessing.active_children():
        child.join(5)
        assert child.exitcode is not None


def test_no_check_within_a_check_or_an_event_loop(checked):
    with pytest.raises(SettingsError, match="another check_exactly_once is under way"):
        checked(lambda *_: check_exactly_once(print, list))

    async def test():
        check_exactly_once(print, list)

    with pytest.raises(SettingsError, match="was called in an event loop"):
        asyncio.run(test())
    checked(with_an_inbox, max_examples=1)
