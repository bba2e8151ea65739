"""Every policy declares all that is known of it. So no other file of the package needs to name it."""

import ast
import dataclasses
import importlib
import json

import pytest

import receiver.policies
from receiver.compare.compiled_policies import compiled_policy_of
from receiver.policies import POLICIES, policy
from receiver.policies.interface import LONGEST_KIND, Cause, Declaration, Use
from receiver.policies.names import compared_by_default, form_of
from receiver.settings import CompareSettings, SimulateSettings
from receiver.store.tables import domains
from tests.policies.cases import KINDS
from tests.policies.toys import FACTS, ROOT, callers_clock_toy, grown, ran, toy
from tests.simulate.small_logs import Receipt, ingested

EACH = pytest.mark.parametrize("kind", POLICIES, ids=lambda kind: kind.kind)
FACTS_DECLARED = [field.name for field in dataclasses.fields(Declaration)]


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Import a file as if it stood in the policies' package, which is restored afterwards."""
    monkeypatch.setattr(receiver.policies, "__path__", [*receiver.policies.__path__, str(tmp_path)])
    monkeypatch.setattr("receiver.policies.interface._registered", list(POLICIES))

    def import_(name, text):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        return importlib.import_module(f"receiver.policies.{name}")

    return import_


def test_the_toy_declares_all_there_is(imported):
    assert list(FACTS) == FACTS_DECLARED
    assert imported("toy_whole", toy(FACTS)).Toy.declaration.order == 1_000


@pytest.mark.parametrize("fact", FACTS_DECLARED)
def test_a_policy_that_leaves_out_a_fact_cannot_be_imported(imported, fact):
    facts = {name: value for name, value in FACTS.items() if name != fact}
    with pytest.raises(TypeError, match=f"argument: '{fact}'$"):
        imported(f"toy_without_{fact}", toy(facts))


@pytest.mark.parametrize(
    ("said", "facts"),
    {
        "must declare a kind of 1 to 16 letters": {"kind": f'"{"t" * (LONGEST_KIND + 1)}"'},
        "must declare either a compiled_policy or": {"compiled_policy": "None"},
        "must declare either a compiled_policy or, in refusals": {
            "refusals": '(Refusal(Use.COMPARISON, "it is", "wait"),)'
        },
        "must declare in vendors, the sizes": {"vendors": "()"},
        "must declare the limit": {"limit": "None"},
        "has the parameters keep_us, but its class takes expiry_us": {"parameters": '(Parameter("keep", "keep_us"),)'},
        "has the kind that ttl has": {"kind": '"ttl"'},
        "has the order that apama has": {"order": "10"},
    }.items(),
)
def test_a_policy_that_contradicts_itself_or_others_cannot_be_imported(imported, said, facts):
    with pytest.raises(TypeError, match=f"policy toy {said}"):
        imported(f"toy_{'_'.join(facts)}_{len(said)}", toy(FACTS | facts))


@EACH
def test_what_is_declared_can_be_used(kind):
    """Everything that uses the declaration can, so that nothing fails at the end of a run."""
    declared = kind.declaration
    for fact in ("name", "kind", "parameters", "records_duplicates", "keeps_ids", "goes_by_send_time"):
        assert getattr(kind, fact) == getattr(declared, fact)
    made = policy(form_of(kind, "7"))
    assert type(made) is kind
    assert CompareSettings().memory_bytes(made.name, ids=1) > 0
    if declared.compiled_policy is None:
        assert [refusal.reason for refusal in declared.refusals if refusal.use is Use.COMPARISON]
    else:
        assert compiled_policy_of(made, ingested([Receipt(0)]))
    assert all(refusal.reason and refusal.hint for refusal in declared.refusals)


@EACH
def test_what_is_said_of_its_vendors_can_be_meant(kind):
    names, tried = {other.name for other in POLICIES}, set()
    for vendor in kind.declaration.vendors:
        if kind.declaration.compiled_policy is not None:
            text = form_of(kind, "7") if vendor.sizes is None else ":".join(filter(None, (kind.name, vendor.sizes)))
            assert type(policy(text)) is kind
            if vendor.is_tried and vendor.sizes is not None and kind.declaration.same_rule_as is None:
                tried.add(str(policy(text)))
        assert vendor.systems or vendor.remark
        assert all(alias == alias.lower().strip() and alias not in names for alias in vendor.aliases)
    assert {text for text in compared_by_default() if type(policy(text)) is kind} == tried
    assert kind.declaration.names_its_system or any(map(str, kind.declaration.vendors))


def test_one_rule_by_two_names_has_one_row_and_both_names():
    by_name = {kind.name: kind for kind in POLICIES}
    also = {kind: by_name[kind.declaration.same_rule_as] for kind in POLICIES if kind.declaration.same_rule_as}
    assert {kind.name: other.name for kind, other in also.items()} == {"solace-lookup": "perfect"}
    assert compared_by_default()["perfect"] == "solace-lookup, forgets nothing, the yardstick"
    for kind, other in also.items():
        assert type(policy(form_of(kind))) is kind
        assert issubclass(kind, other)
        assert kind.declaration.compiled_policy == other.declaration.compiled_policy


def test_every_policy_is_held_against_a_model():
    assert [case.name for case in KINDS] == [kind.kind for kind in POLICIES]


def test_a_store_has_room_for_every_kind():
    assert domains.c.policy.type.length == LONGEST_KIND


def test_memory_is_stated_once_for_each_policy():
    assert set(CompareSettings().memory_bytes_per_id) == {kind.name for kind in POLICIES}


def test_apamas_memory_is_one_figure_in_both_commands():
    assert SimulateSettings().memory_bytes_per_id == CompareSettings().memory_bytes_per_id["apama"]


def test_every_cause_has_its_meaning():
    assert all(cause.meaning and Cause(str(cause)) is cause for cause in Cause)


@pytest.mark.parametrize("room", ["store", "report", "cli", "compare"])
def test_no_other_room_names_a_policy(room):
    """The schema may: migrations have fixed its default. And both messages and servers have sequences."""
    names = {kind.name for kind in POLICIES} | {kind.kind for kind in POLICIES}
    said = [
        (file.name, node.value)
        for file in sorted((ROOT / "receiver" / room).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value in names or any(f"{name}:" in node.value for name in names)
    ]
    of_tables = {
        ("tables.py", "apama"),
        ("tables.py", "sequence"),
        ("packed.py", "sequence"),
        ("messages.py", "sequence"),
        ("invariants.py", "sequence"),
        ("postgres_faults.py", "sequence"),
    }
    assert [each for each in said if each not in of_tables] == []


LOG = "received_at,unique_message_id,connection_id,destination\n1,a,c,q\n2,a,c,q\n20,a,c,q\n21,b,c,q\n"
DURABLE = """
from receiver import Receiver

where = dict(connection_id="c", destination="queue://q")
with Receiver.open("sqlite:///toys.db", domain="name:toy", policy="toy:keep=7", **where) as toys:
    with toys.batch() as batch:
        print([str(batch.receive("a", received_at_us=us).verdict) for us in (1, 2, 9_000_000)])
with Receiver.open("sqlite:///toys.db", domain="name:advanced", policy="advanced-toy:retry=1,network=1", **where) as toys:
    with toys.batch() as batch:
        batch.receive("a", received_at_us=1)
        batch.advance(min_msg_time_us=5_000_000)
with Receiver.open("sqlite:///toys.db", domain="name:advanced", **where) as toys:
    print(toys.status().policy)
"""


@pytest.mark.slow
def test_a_new_policy_is_one_file_and_its_bytes_per_id(tmp_path):
    """It is compared, explained, made durable and audited, and nothing else in the package changes."""
    grown(tmp_path, toy=toy(FACTS), callers_clock_toy=callers_clock_toy())
    (tmp_path / "log.csv").write_text(LOG, encoding="utf-8")
    helped = ran(tmp_path, "-m", "receiver", "compare", "--help")
    assert helped.returncode == 0, helped.stderr
    assert "| toy:keep=." in helped.stdout
    assert "toy is that of Toy MQ (7)" in " ".join(helped.stdout.split())
    asked = ran(tmp_path, "-m", "receiver", "compare", "log.csv", "--policy=toy:keep=7", "--policy=perfect", "--json")
    assert asked.returncode == 0, asked.stderr
    figures = json.loads(asked.stdout)["policies"][0]
    assert (figures["caught"], figures["missed_causes"], figures["memory_bytes"]) == (1, {"expired": 1}, 200)
    unasked_ = ran(tmp_path, "-m", "receiver", "compare", "log.csv", "--report", "page.html")
    assert unasked_.returncode == 0, unasked_.stderr
    assert "toy:keep=7" in unasked_.stdout
    assert "Toy MQ" in unasked_.stdout
    assert "Toy MQ" in (tmp_path / "page.html").read_text(encoding="utf-8")
    for text, said in {
        "toymq": "write toy:keep=7",
        "advanced-toy:retry=1,network=1": "can't be compared, because no toy is",
    }.items():
        refused = ran(tmp_path, "-m", "receiver", "compare", "log.csv", f"--policy={text}")
        assert refused.returncode == 2
        assert said in refused.stderr
    durable = ran(tmp_path, "-c", DURABLE)
    assert durable.returncode == 0, durable.stderr
    assert durable.stdout.splitlines() == ["['new', 'duplicate', 'new']", "advanced-toy:retry=2,network=0"]
    checked = ran(tmp_path, "-m", "receiver", "check", "sqlite:///toys.db")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({name: value for name, value in FACTS.items() if name != "misses"}, "policy toy does not declare misses"),
        (FACTS | {"compiled_policy": '"none such"'}, "policy toy declares the compiled policy 'none such'"),
    ],
    ids=["a fact", "a compiled policy"],
)
def test_the_package_is_not_imported_with_an_incomplete_policy(tmp_path, facts, said):
    grown(tmp_path, toy=toy(facts))
    failed = ran(tmp_path, "-c", "import receiver.compare.compiled_policies")
    assert failed.returncode == 1
    assert said in failed.stderr
