"""What `--help` shows: each option once, under its heading, uncut, and without what only programmers read."""

import re

import pytest
import typer
from typer.testing import CliRunner

from receiver.bridge.options import Mode
from receiver.cli import app
from receiver.domains import DOMAIN_KEYS

GROUP = typer.main.get_command(app)


def every_command(group, *above):
    """Each command below the group by its names, and whether it is a group itself."""
    for name, command in group.commands.items():
        is_group = hasattr(command, "commands")
        yield (*above, name), is_group
        if is_group:
            yield from every_command(command, *above, name)


COMMANDS = dict(every_command(GROUP))


def help_of(*names: str) -> str:
    return CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "80"}).output


@pytest.mark.parametrize("names", [(), *COMMANDS], ids=" ".join)
def test_nothing_is_cut_and_what_an_option_takes_has_a_name(names):
    shown = help_of(*names)
    usage, _, below = shown.partition("\n")
    assert usage.startswith("Usage: ")
    assert all(word.isupper() for word in re.findall(r"{(.+?)}", usage))
    assert not re.search("<[^|]*>", below.partition("Examples:")[0]), "a type, and not values to choose from"
    assert "...\n" not in shown.partition("Options:")[2].partition("Examples:")[0]
    assert "list[" not in shown


@pytest.mark.parametrize("names", [names for names, is_group in COMMANDS.items() if not is_group], ids=" ".join)
def test_each_command_has_examples_of_one_line_to_copy(names):
    paragraphs = map(str.strip, help_of(*names).partition("Examples:")[2].split("\n\n"))
    examples = [each for each in paragraphs if each.startswith("receiver ")]
    assert examples
    for each in examples:
        assert each.startswith(" ".join(["receiver", *names, ""]))
        assert "\n" not in each


@pytest.mark.parametrize("name", ["bridge", "simulate"])
def test_options_stand_under_their_headings(name):
    command = GROUP.commands[name]
    flags = {parameter.opts[0] for parameter in command.params if parameter.param_type_name == "option"}
    assert command.callback.headings.keys() <= flags
    sections = help_of(name).partition("Options:")[2].partition("Examples:")[0]
    for flag in flags:
        assert f"\n  {flag}" in sections
    (*_, last) = (f"\n{heading}:\n" for heading in dict.fromkeys(command.callback.headings.values()))
    assert sections.partition("\n\n")[0].count("\n  --") < 6
    assert last in sections


def test_each_mode_and_each_key_is_explained():
    words = " ".join(help_of("bridge").split())
    for mode in Mode:
        assert f" {mode}: " in words
    assert "RECEIVER_FROM_PASSWORD" in words
    assert "EXACTLY_ONCE" in help_of("inbox", "move")
    for name in ("bridge", "simulate", "compare"):
        told = help_of(name).partition("--domain KEY")[2].partition("[default")[0]
        assert all(key in told for key in DOMAIN_KEYS)
        assert "name:TEXT" in told
