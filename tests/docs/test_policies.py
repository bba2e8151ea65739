"""Every snippet of `docs/policies.md` runs exactly as printed, and its table names every policy."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from receiver import Receiver
from receiver.errors import BatchRejectedError, IdFormatError
from receiver.policies import POLICIES, policy
from receiver.report.elsewhere import REMEMBERED, amount, sized_systems

PAGE = Path(__file__).resolve().parents[2] / "docs" / "policies.md"
TEXT = PAGE.read_text(encoding="utf-8")
ITS_URL = '"sqlite:///receiver.db"'
MOST_LINES = 11
"""Ten lines, and one for an import."""


def sections() -> dict[str, str]:
    code_by_title = {}
    for section in re.split(r"^##+ ", TEXT, flags=re.MULTILINE):
        code = re.search(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        if code:
            code_by_title[section.partition("\n")[0].removeprefix("# ")] = code[1]
    return code_by_title


CODE = sections()
MALFORMED = "An id of another form"
SIZED = "Sized by a log"
OTHERS = {"Policies", "Durable", MALFORMED}
EXAMPLES = {name: code for name, code in CODE.items() if name not in OTHERS}


def run(code: str, names: dict) -> dict:
    exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 - our own text
    return names


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_shows_what_it_says(name):
    code = EXAMPLES[name]
    assert len(code.splitlines()) <= MOST_LINES
    assert "assert" in code
    run(code, run(CODE["Policies"], {}))


def test_every_snippet_is_run():
    assert len(CODE) == TEXT.count("```python")


def test_every_policy_has_its_section():
    headings = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert headings[:-2] == list(dict.fromkeys(kind.name for kind in POLICIES))
    assert headings[-2:] == [SIZED, "Durable"]
    assert list(EXAMPLES) == [name for name in headings[:-2] if name != "perfect"]


def test_the_table_has_every_policy_and_its_defaults():
    first_cells = re.findall(r"^\| `([^`]*)`", TEXT, re.MULTILINE)
    for kind, cell in zip(POLICIES, first_cells, strict=True):
        name, _, parameters = cell.partition(":")
        given = dict(item.split("=") for item in parameters.split(",") if item)
        assert (name, list(given)) == (kind.name, [parameter.name for parameter in kind.parameters])
        if all(given.values()):
            assert str(policy(cell)) == str(policy(name)) == cell


def test_the_table_names_every_system_that_a_policy_is_the_rule_of():
    rows = re.findall(r"^\| `[^`]*` \| ([^|]*) \|", TEXT, re.MULTILINE)
    for kind, whose in zip(POLICIES, rows, strict=True):
        for vendor in kind.declaration.vendors:
            if not vendor.is_tried or vendor.sizes is None:  # a log sizes this one
                continue
            size = vendor.sizes.partition("=")[2]
            assert [name for name in vendor.systems if name not in whose] == []
            assert vendor.sizes_are_ours or not size or f"{vendor.systems[-1]} ({size})" in whose


@pytest.mark.slow
def test_a_system_is_sized_by_the_sample_log():
    log = [str(PAGE.parents[1] / "examples" / "artemis-receipts.csv.gz"), "--domain", "destination", "--json"]

    def printed(command, *options):
        return json.loads(subprocess.check_output([sys.executable, "-m", "receiver", command, *log, *options]))

    needs = printed("simulate")["elsewhere"]
    assert needs == {"artemis_id_cache_size": 30_321, "lru_size": 15_886, "ttl_secs": 40.503775}
    ring, lru = needs["artemis_id_cache_size"], needs["lru_size"]
    sizes = [f"artemis:id_cache_size={ring}", f"lru:size={lru}"]
    short = [f"artemis:id_cache_size={ring - 1}", f"lru:size={lru - 1}"]
    compared = printed("compare", *(f"--policy={each}" for each in sizes + short))["policies"]
    missed = [each["missed"] for each in compared]
    assert missed[:2] == [0, 0] < missed[2:]


def test_every_system_that_a_log_sizes_has_its_row():
    section = TEXT.partition(f"## {SIZED}\n")[2].partition("\n## ")[0]
    groups = re.findall(r"^- (.*)\n((?:  - .*\n)+)", section, re.MULTILINE)
    rows = [(remembers, row.removeprefix("  - ")) for remembers, rows in groups for row in rows.splitlines()]
    for (remembers, row), system in zip(rows, sized_systems(), strict=True):
        setting = f"`{system.setting.name}`" if system.setting.name else "none, it is fixed"
        default = "none" if system.default is None else amount(system.limit, system.default)
        least_and_most = (system.setting.least, system.setting.most)
        limits = " to ".join(amount(system.limit, value) for value in least_and_most if value)
        assert remembers == REMEMBERED[system.limit]
        assert row == f"[{system.name}]({system.setting.source}): {setting}; {default}" + (
            f" ({limits})" if limits else ""
        )


def test_a_durable_policy_remembers(store_url):
    code = CODE["Durable"].replace(ITS_URL, repr(store_url))
    assert code != CODE["Durable"]
    for expected in ("new", "duplicate", "duplicate"):
        assert run(code, {})["verdict"] == expected
    rejecting = code.replace("policy=", "reject_batches=True, policy=")
    with pytest.raises(BatchRejectedError):
        run(rejecting, {})
    assert run(rejecting.replace("1:gateway-1", "2:gateway-1"), {})["verdict"] == "new"


def test_an_id_of_another_form(store_url):
    assert "assert" in CODE[MALFORMED]
    run(CODE[MALFORMED], run("from receiver import Receiver", {"URL": store_url}))
    uncaught = CODE[MALFORMED].replace("except IdFormatError", "except KeyError").replace('"broker-b"', '"broker-c"')
    with pytest.raises(IdFormatError):
        run(uncaught, run("from receiver import Receiver", {"URL": store_url}))
    with (
        Receiver.open(store_url, connection_id="broker-c", destination="queue://orders") as orders,
        orders.batch() as batch,
    ):
        assert batch.receive("1:gateway-1").deliver  # the whole batch was rolled back
