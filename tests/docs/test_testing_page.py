"""The programs of `docs/testing.md` and of `examples/testing/` run."""

import re
import subprocess
import sys

import pytest

from tests.docs.markdown import ROOT, blocks

PAGE = "docs/testing.md"
CONSUMER, TEST, RULE = blocks(PAGE, "python")
ACKNOWLEDGES = "        broker.acknowledge(messages)\n"


def names_of(*snippets):
    names = {}
    for snippet in snippets:
        exec(compile(snippet, PAGE, "exec"), names)  # noqa: S102 - our own text
    return names


def told(said):
    """The words that don't depend on a program's path, its name, or Hypothesis."""
    return re.sub(r" \([^()]*:\d+\)|\(Hypothesis .*|story_\w+", "", said).split()


def test_the_consumer_with_a_fault_is_found(tmp_path):
    with pytest.raises(AssertionError) as raised:
        names_of(CONSUMER, TEST)["test_take_orders"](tmp_path)
    (shown,) = blocks(PAGE, "text")
    assert told(str(raised.value)) == told(shown)


@pytest.mark.costly
def test_it_passes_once_it_is_mended(tmp_path):
    assert CONSUMER.endswith(f"    {ACKNOWLEDGES}")
    mended = CONSUMER.removesuffix(f"    {ACKNOWLEDGES}") + ACKNOWLEDGES
    names_of(mended, TEST)["test_take_orders"](tmp_path)


def test_the_rule_held_against_its_model():
    names_of(RULE)["test_my_detector"]()


@pytest.mark.slow
@pytest.mark.parametrize("which", ["each_payment", "event_loop", "bridge"])
def test_the_examples_pass(which, tmp_path):
    program = ROOT / "examples" / "testing" / "test_consumer.py"
    options = ["-q", "-k", which, "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", str(program), *options],
        cwd=program.parent, check=False, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout
