"""What a person who opens the repository may rely on."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MACHINE_PATH = re.compile(r"""(?:^|[\s"'`=(:])/(?:home|root|work|Users)/""")


def tracked_files() -> list[Path]:
    try:
        ran = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in ran.stdout.split("\0") if name and (ROOT / name).is_file()]


def tracked_texts() -> dict[str, str]:
    texts = {}
    for file in tracked_files():
        content = file.read_bytes()
        if b"\0" not in content:
            texts[str(file.relative_to(ROOT))] = content.decode("utf-8")
    return texts


def test_no_two_modules_of_the_tests_have_one_name():
    """Most modules are imported by their name alone, from their folder. The first folder would serve for both."""
    modules = Counter(Path(name).name for name in tracked_texts() if name.startswith("tests/") and name.endswith(".py"))
    assert [name for name, files in modules.items() if files > 1 and name != "conftest.py"] == []


def test_no_path_of_one_machine():
    strays = [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert strays == []


def test_links_between_documents_lead_somewhere():
    dead = [
        f"{name}: {target}"
        for name, text in tracked_texts().items()
        if name.endswith(".md")
        for target in re.findall(r"\]\(([^)#\s]+)", text)
        if "://" not in target and not (ROOT / name).parent.joinpath(target).exists()
    ]
    assert dead == []


def test_every_folder_of_tests_is_explained():
    folders = {Path(name).parts[1] for name in tracked_texts() if name.startswith("tests/") and name.count("/") > 1}
    explained = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    assert {folder for folder in folders if f"`{folder}/`" not in explained} == set()
