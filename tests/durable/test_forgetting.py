"""`receiver lookup` and `receiver forget`: their answers, and that every process follows them. The lockstep tests
have the rest."""

import pytest

from receiver import Receiver
from receiver.durable.audit import audit
from receiver.durable.forgetting import forget, look_up
from receiver.errors import SettingsError, StoreError
from receiver.message import Tier
from tests.durable.opened import opened, sizes
from tests.durable.test_policy_contract import RMGID
from tests.policies.cases import KINDS

WINDOW = sizes(3, 10)


def receive(receiver, *ids, source="s", at_us=0):
    with receiver.batch() as batch:
        return [batch.receive(id_, source, received_at_us=at_us).verdict.value for id_ in ids]


def test_the_next_message_is_new_for_everybody_at_once(store_url):
    with opened(store_url) as one, opened(store_url) as other:
        receive(one, "a", "b")
        assert receive(other, "a") == ["duplicate"]
        assert forget(store_url, "a") == [one.domain]
        assert receive(one, "a", "b") == ["new", "duplicate"]
        assert receive(other, "a", "b") == ["duplicate"] * 2
        forget(store_url, "b")
        assert receive(other, "b") == ["new"]
    assert audit(store_url).findings == ()


def test_all_other_ids_are_remembered_for_as_long_as_before(store_url):
    """The slot of `b` stays taken. So `a` leaves the window when it would have, and doesn't come back when the rows
    are read."""
    with opened(store_url, settings=sizes(3, 0)) as receiver:
        receive(receiver, "a", "b", "c")
        forget(store_url, "b")
        receive(receiver, "d")
    with opened(store_url) as receiver:
        assert receive(receiver, "c", "d", "a") == ["duplicate", "duplicate", "new"]


def test_an_id_of_several_sources_is_forgotten_in_each(store_url):
    with opened(store_url, settings=WINDOW) as receiver:
        for source in "st":
            receive(receiver, "a", source=source)
        forget(store_url, "a")
        assert receive(receiver, "a", source="t") == ["new"]
        assert receive(receiver, "a", source="s") == ["duplicate"]
    assert audit(store_url).findings == ()


def test_rows_that_a_duplicate_has_replaced_are_not_called_back(store_url):
    with opened(store_url, settings=sizes(3, 0)) as receiver:
        receive(receiver, "a", "b", "a", "c")  # b, a, c
        forget(store_url, "a")
        receive(receiver, "d")  # b leaves, although the first row of `a` is still there
    with opened(store_url) as receiver:
        assert receive(receiver, "c", "d", "b") == ["duplicate", "duplicate", "new"]


def test_what_is_looked_up(store_url):
    with opened(store_url, settings=WINDOW) as receiver:
        receive(receiver, "a", at_us=1_000_000)
        receive(receiver, "a", at_us=2_000_000)
        receive(receiver, "b", source=None, at_us=3_000_000)
        known = {id_: look_up(store_url, id_) for id_ in ("a", "b", "c")}
        name = receiver.domain
        assert known["a"] == [(name, True, Tier.SOURCE, 1_000_000, 2_000_000, "s")]
        assert known["b"] == [(name, True, Tier.SOURCE, 3_000_000, 3_000_000, None)]
        assert known["c"] == [(name, False, None, None, None, None)]
        receive(receiver, "d", "e", "f", at_us=4_000_000)
        assert look_up(store_url, "a")[0].tier is Tier.TIME


def test_domains_by_name(store_url):
    for destination in ("one", "two"):
        with opened(store_url, destination=destination) as receiver:
            receive(receiver, "a")
    (first, second) = [known.domain for known in look_up(store_url, "a")]
    assert forget(store_url, "a", domain=first) == [first]
    assert [(known.domain, known.is_remembered) for known in look_up(store_url, "a")] == [
        (first, False),
        (second, True),
    ]
    for ask in (look_up, forget):
        with pytest.raises(SettingsError, match="has no domain"):
            ask(store_url, "a", domain="three")


def test_nothing_is_forgotten_if_one_domain_cant_forget_it(store_url):
    """Otherwise the refusal wouldn't say in which domains the next message is new by now."""
    with opened(store_url) as first, opened(store_url, destination="two", policy="sequence") as second:
        for receiver in (first, second):
            receive(receiver, "5:s")
        with pytest.raises(SettingsError, match="can't forget one"):
            forget(store_url, "5:s")
        assert receive(first, "5:s", "6:s") == ["duplicate", "new"]
        assert forget(store_url, "6:s") == [first.domain]  # the other doesn't remember it


def test_a_store_that_is_not_there_is_not_made(tmp_path):
    for ask in (look_up, forget):
        with pytest.raises(StoreError):
            ask(f"sqlite:///{tmp_path}/none.db", "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_other_policies_forget_too_or_say_that_they_cant(store_url, kind):
    name = {"solace-last": RMGID, "sequence": "{}:s"}.get(kind.name, "id {}")
    a, b = (name.format(number) for number in (1, 2))
    with Receiver.open(store_url, connection_id="b", destination="q", policy=kind.text(*kind.roomy)) as receiver:
        receive(receiver, a, b)
        assert look_up(store_url, b)[0].is_remembered
        if name != "id {}":
            with pytest.raises(SettingsError, match="can't forget one"):
                forget(store_url, b)
            assert receive(receiver, b) == ["duplicate"]
            return
        assert forget(store_url, b) == [receiver.domain]
        assert not look_up(store_url, b)[0].is_remembered
    with Receiver.open(store_url, connection_id="b", destination="q") as receiver:
        assert receive(receiver, a, b, b) == ["duplicate", "new", "duplicate"]
    assert audit(store_url).findings == ()
