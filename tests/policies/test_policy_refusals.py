"""Refusals: of texts that name no policy, of sizes that make no sense, and of receipts, which then change nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.errors import IdFormatError, SettingsError
from receiver.policies import ArtemisIdCache, policy
from receiver.policies.apama import ApamaTwoTier
from receiver.policies.cmq import CmqKeyCache, CmqMinimumTimeCache
from receiver.policies.names import policy_of_kind
from receiver.policies.ttl import TimeToLive
from tests.policies.cases import KINDS, Kind

EACH_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)

TEXTS = {
    "": "choose from apama, artemis, lru, solace-lookup",
    "kafka": "choose from apama, artemis, lru, solace-lookup",
    "artmis": "did you mean artemis?",
    "Artemis": "did you mean artemis?",
    "APAMA": "did you mean apama?",
    " artemis": "did you mean artemis?",
    "solace_last": "did you mean solace-last?",
    "sequences": "did you mean sequence?",
    "nats": "write ttl:expiry=120",
    "spark": "write ttl:expiry=...",
    "SQS": "write ttl:expiry=300",
    "activemq": "write artemis",
    "solace": "write solace-lookup or solace-last",
    "rabbitmq": "write sequence",
    "artemis:": "not of the form parameter=value",
    "artemis:20000": "not of the form parameter=value (write artemis:id_cache_size=...)",
    "artemis:id_cache_size": "not of the form parameter=value",
    "artemis:id_cache_size=": "not of the form parameter=value",
    "artemis:=7": "not of the form parameter=value",
    "artemis:id_cache_size=7,": "not of the form parameter=value",
    "artemis:id_cache_size=7;expiry=1": "not '7;expiry=1'",
    "artemis:id_cache_size=7,id_cache_size=7": "gives id_cache_size twice",
    "artemis:size=7": "no parameter 'size' (choose from id_cache_size)",
    "artemis:id-cache-size=7": "did you mean id_cache_size?",
    "artemis: id_cache_size=7": "did you mean id_cache_size?",
    "artemis:id_cache_size=7,expiry=1": "no parameter 'expiry'",
    "perfect:": "not of the form parameter=value (write perfect)",
    "perfect:expiry=1": "perfect takes none",
    "sequence:window=1": "sequence takes none",
    "ttl": "lacks expiry= (write ttl:expiry=...)",
    "ttl:ttl=5": "no parameter 'ttl'",
    "cmq": "lacks retention= (write cmq:retention=...,retry=...,network=... or cmq:retry=...,network=...)",
    "cmq:retention=1": "lacks retry=",
    "cmq:retry=1": "lacks retention= (write cmq:retention=...,retry=...,network=... or cmq:retry=...,network=...)",
    "cmq:retention=1,network=1": "lacks retry=",
    "cmq:retention=1,retry=1,network=1,expiry=1": "no parameter 'expiry'",
    "apama:window=0,expiry=0": "would detect nothing",
    "apama:window=2.5": "window must be a whole number",
}
NUMBERS = {
    "negative": "-1",
    "a sign": "+1",
    "not a number": "NaN",
    "infinite": "inf",
    "infinity": "Infinity",
    "too large": "1000000000001",
    "huge": "9" * 10_000,
    "a space in front": " 5",
    "a space behind": "5 ",
    "a line break": "5\n",
    "an exponent": "1e3",
    "a huge exponent": "1e999999999",
    "hexadecimal": "0x10",
    "full-width": "\N{FULLWIDTH DIGIT ONE}",
    "underscores": "1_000",
    "a unit": "5s",
    "a word": "five",
    "a fraction without digits": "5.",
    "a fraction without a whole": ".5",
    "two points": "1.2.3",
    "another equals sign": "=5",
}
PARAMETERS = ["apama:window", "apama:expiry", "artemis:id_cache_size", "ttl:expiry"]


@pytest.mark.parametrize(("text", "said"), TEXTS.items())
def test_texts_that_name_no_policy(text, said):
    with pytest.raises(SettingsError) as refused:
        policy(text)
    assert said in str(refused.value)


@pytest.mark.parametrize("parameter", PARAMETERS)
@pytest.mark.parametrize("value", NUMBERS.values(), ids=NUMBERS)
def test_values_that_are_no_plain_number(parameter, value):
    name = parameter.partition(":")[2]
    with pytest.raises(SettingsError, match=f"{name} must be .* from 0 to 1,000,000,000,000, not") as refused:
        policy(f"{parameter}={value}")
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("value", ["0.5", "7.0"])
def test_a_count_has_no_fraction(value):
    with pytest.raises(SettingsError, match="id_cache_size must be a whole number from 0"):
        policy(f"artemis:id_cache_size={value}")


@pytest.mark.parametrize("text", [None, 7, b"artemis", ["artemis"]])
def test_a_policys_text_is_text(text):
    with pytest.raises(SettingsError, match="must be text"):
        policy(text)


def test_times_are_read_to_a_microsecond():
    assert str(policy("ttl:expiry=0.0000015")) == "ttl:expiry=0.000002"
    assert str(policy("ttl:expiry=1000000000000")) == "ttl:expiry=1000000000000"
    assert str(policy("artemis:id_cache_size=" + "0" * 9_000 + "7")) == "artemis:id_cache_size=7"


def test_vendors_defaults():
    assert str(policy("artemis")) == "artemis:id_cache_size=20000"
    assert str(policy("apama")) == "apama:window=2000,expiry=120"
    assert str(policy("apama:expiry=5")) == "apama:window=2000,expiry=5"


@EACH_KIND
@given(data=st.data())
def test_a_policys_text_is_read_back(kind: Kind, data):
    sizes = data.draw(kind.sizes)
    made = policy(kind.text(*sizes))
    assert (made.kind, str(made)) == (kind.name, kind.text(*sizes))
    assert repr(made) == f"policy({str(made)!r})"
    again = policy(str(made))
    assert (type(again), again.sizes, str(again)) == (type(made), made.sizes, str(made))
    stored = policy_of_kind(made.kind, *made.sizes)
    assert (type(stored), stored.sizes) == (type(made), made.sizes)


@pytest.mark.parametrize("parameters", ["apama:window={},expiry={}", "cmq:retry={},network={}", "ttl:expiry={1}"])
@given(st.integers(0, 10**6), st.integers(1, 10**15))
def test_a_text_with_large_sizes_is_read_back(parameters, count, us):
    text = parameters.format(count, f"{us // 10**6}.{us % 10**6:06d}")
    assert str(policy(str(policy(text)))) == str(policy(text))


@pytest.mark.parametrize("kind", ["", "kafka", "Apama"])
def test_kinds_that_a_store_may_hold(kind):
    with pytest.raises(SettingsError, match="there is no policy"):
        policy_of_kind(kind, 1, 1)


@pytest.mark.parametrize("bad", [-1, 1.5, True, "7", None, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (ArtemisIdCache, "id_cache_size"),
        (lambda bad: ArtemisIdCache(7).restarted(bad) if bad is not None else ArtemisIdCache(bad), "id_cache_size"),
        (TimeToLive, "expiry_us"),
        (lambda bad: ApamaTwoTier(7, bad), "expiry_us"),
        (lambda bad: CmqKeyCache(bad, 0, 0), "retention_us"),
        (lambda bad: CmqKeyCache(0, 0, bad), "network_us"),
        (lambda bad: CmqMinimumTimeCache(bad, 0), "retry_us"),
    ],
)
def test_sizes_given_from_python(make, name, bad):
    with pytest.raises(SettingsError, match=f"{name} must be a whole number of at least 0"):
        make(bad)


# Receipts


def seen(made) -> tuple:
    figures = ("remembered_ids", "peak_ids", "clock_clamped", "latest_us", "serial", "clock_us")
    return made.entries(), *(getattr(made, figure) for figure in figures)


def used(kind: Kind):
    """A policy that has received two ids, one of them twice, with a clock that stepped back."""
    made = policy(kind.text(*kind.roomy))
    for number, id_ in enumerate([*kind.ids[:2], kind.ids[0]]):
        made.receive(id_, "s", received_at_us=10 - number)
    return made


@EACH_KIND
@pytest.mark.parametrize(
    "receipt",
    [(1, None, 0), (b"a", None, 0), (0, None, 0), ([], None, 0), ("ID", 1, 0), ("ID", [], 0), ("ID", b"s", 0)]
    + [("ID", "s", time) for time in (None, 0.5, "0", True, float("nan"), float("inf"))],
    ids=repr,
)
def test_a_refused_receipt_changes_nothing(kind: Kind, receipt):
    made, untouched = used(kind), used(kind)
    id_, source, received_at_us = receipt
    with pytest.raises(SettingsError, match="must be"):
        made.receive(kind.ids[2] if id_ == "ID" else id_, source, received_at_us=received_at_us)
    assert seen(made) == seen(untouched)
    after = [each.receive(kind.ids[2], "s", received_at_us=11) for each in (made, untouched)]
    assert after[0] == after[1]


@EACH_KIND
def test_the_first_time_is_not_negative(kind: Kind):
    made = policy(kind.text(*kind.roomy))
    with pytest.raises(SettingsError, match="must not be negative"):
        made.receive(kind.ids[0], received_at_us=-1)
    assert seen(made) == seen(policy(kind.text(*kind.roomy)))


@EACH_KIND
def test_a_later_time_may_be_negative(kind: Kind):
    made = policy(kind.text(*kind.roomy))
    verdicts = [made.receive(kind.ids[0], received_at_us=time_us).verdict for time_us in (5, -1)]
    assert verdicts == ["new", "duplicate"]
    assert (made.latest_us, made.clock_clamped) == (5, 1)


@EACH_KIND
def test_no_id_no_check(kind: Kind):
    made, untouched = used(kind), used(kind)
    for id_ in (None, ""):
        assert made.receive(id_, "s", received_at_us=10**9).verdict == "unchecked"
        assert made.receive(id_, None, received_at_us=-5).deliver
    assert seen(made) == seen(untouched)


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("solace-last", "7"),
        ("solace-last", "7:s"),
        ("sequence", "7"),
        ("sequence", "s:7"),
        ("sequence", ":s"),
        ("sequence", "-1:s"),
        ("sequence", "+1:s"),
        ("sequence", "1.0:s"),
        ("sequence", "1e3:s"),
        ("sequence", "0x1:s"),
        ("sequence", "1_0:s"),
        ("sequence", " 1:s"),
        ("sequence", "1 :s"),
        ("sequence", "\n1:s"),
        ("sequence", "\N{FULLWIDTH DIGIT ONE}:s"),
        ("sequence", "\N{SUPERSCRIPT TWO}:s"),
        ("sequence", "9" * 5_000 + ":s"),
        ("sequence", "rmid1:0d77c-b0b2e66aece-00000000-00000001"),
    ],
)
def test_ids_that_a_policy_cannot_judge(name, id_):
    kind = next(kind for kind in KINDS if kind.name == name)
    made, untouched = used(kind), used(kind)
    with pytest.raises(IdFormatError, match=r"isn't a replication group|is not of the form") as refused:
        made.receive(id_, received_at_us=99)
    assert isinstance(refused.value, ValueError)
    assert len(str(refused.value)) < 300
    with pytest.raises(IdFormatError):
        _ = id_ in made
    assert seen(made) == seen(untouched)


def test_the_source_of_a_sequence_is_all_behind_the_first_colon():
    sequence = policy("sequence")
    receipts = [("1:a:b", "x"), ("1:a", "x"), ("1:", "x"), ("01:a:b", "y"), ("2:a:b", "z")]
    verdicts = [sequence.receive(id_, source, received_at_us=0).verdict for id_, source in receipts]
    assert verdicts == ["new", "new", "new", "duplicate", "new"]
    assert sequence.remembered_ids == 3


@pytest.mark.parametrize("ids", [["a", 1], [b"a"], ["b", 0], "abc"])
def test_a_refused_transaction_changes_nothing(ids):
    made, untouched = ArtemisIdCache(3), ArtemisIdCache(3)
    with pytest.raises(SettingsError):
        made.receive_transaction(ids)
    assert seen(made) == seen(untouched)


@pytest.mark.parametrize("bad", [-1, 0.5, None, True, "0"])
def test_a_minimum_that_is_no_time(bad):
    made = CmqMinimumTimeCache(1, 1)
    with pytest.raises(SettingsError, match="min_msg_time_us must be whole microseconds"):
        made.advance(min_msg_time_us=bad)
    assert made.clock_us is None


@pytest.mark.parametrize("bad", [-1, 0.5, True, "0"])
def test_a_send_time_that_is_no_time(bad):
    made = CmqMinimumTimeCache(1, 1)
    with pytest.raises(SettingsError, match="jms_timestamp_ms must be whole milliseconds"):
        made.receive("a", received_at_us=0, jms_timestamp_ms=bad)
    assert seen(made) == seen(CmqMinimumTimeCache(1, 1))
