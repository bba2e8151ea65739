"""What the site shows from outside `docs/`. MkDocs calls the functions `on_…` (`hooks` in `mkdocs.yml`).

Links are written for those who read the files where they stand, such as `../README.md`. On the site the README is the
start page. Every other file that a page links to gets a page under `source/`.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import dirname, join, normpath, relpath

from markdown import Extension, Markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,}).*?^(?P=indent)(?P=fence) *$|(?<=\]\()(?![a-z]+:|#)(?P<target>[^)\s#]+)",
    re.DOTALL | re.MULTILINE,
)
"""A block of code, which has no links, or the file that a link leads to, without its anchor."""
IN_NO_MENU = InclusionLevel.NOT_IN_NAV
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json", ".sh": "sh"}


class NestedLists(Extension):
    """Lists nest by two spaces, as the files have them. Python-Markdown wants four."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Python-Markdown calls it so
        md.tab_length = 2
        md.build_parser()


def on_config(config: MkDocsConfig) -> None:
    # First, for it makes the parser anew, and the others add to that.
    config.markdown_extensions.insert(0, NestedLists())  # type: ignore[call-overload]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the README, and what it and the pages link to outside `docs/`."""
    waiting = ["README.md", *(in_repository(file) for file in files.documentation_pages())]
    seen = set(waiting)
    for name in waiting:
        if not name.startswith("docs/"):
            files.append(outside_file(name, config))
        if name.endswith(".md"):
            text = (ROOT / name).read_text(encoding="utf-8")
            targets = {resolved(name, link["target"]) for link in LINK.finditer(text) if link["target"]}
            new = sorted(target for target in targets - seen if is_outside_file(target))
            waiting += new
            seen.update(new)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs gives four
    """Turn each link to a file of the repository into one to its page."""
    here = dirname(page.file.src_uri) or "."
    name = in_repository(page.file)

    def on_site(link: re.Match[str]) -> str:
        return relpath(site_uri(resolved(name, link["target"])), here) if link["target"] else link[0]

    return LINK.sub(on_site, markdown)


def resolved(name: str, target: str) -> str:
    return normpath(join(dirname(name), target))


def is_outside_file(name: str) -> bool:
    return not name.startswith(("docs/", "..")) and (ROOT / name).exists()


def site_uri(name: str) -> str:
    """Where the site has a file of the repository: text as a page, all else as it is."""
    if name == "README.md":
        return "index.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    is_text = (ROOT / name).is_dir() or PurePosixPath(name).suffix in {*LANGUAGES, ""}
    return f"source/{name}.md" if is_text else f"source/{name}"


def in_repository(file: File) -> str:
    """The file that a page shows."""
    uri = file.src_uri
    if uri == "index.md":
        return "README.md"
    if not uri.startswith("source/"):
        return f"docs/{uri}"
    name = uri.removeprefix("source/")
    return name if (ROOT / name).exists() else name.removesuffix(".md")


def outside_file(name: str, config: MkDocsConfig) -> File:
    path, uri = ROOT / name, site_uri(name)
    if uri != f"source/{name}.md":
        return File.generated(config, uri, abs_src_path=str(path), inclusion=IN_NO_MENU)
    if path.is_dir():
        shown = "".join(f"- `{entry.name}`\n" for entry in sorted(path.iterdir()))
    else:
        fence = "`````"
        shown = f"{fence}{LANGUAGES.get(path.suffix, '')}\n{path.read_text(encoding='utf-8')}\n{fence}\n"
    return File.generated(config, uri, content=f"# `{name}`\n\n{shown}", inclusion=IN_NO_MENU)
