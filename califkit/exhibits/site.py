"""The static site of a profile: exhibits first, then notebooks as executed, docs and API reference.

Built with MkDocs from a copy of what the repository has, so that links in it go on working; opened
from the disk or put on any web server. Nothing in it is loaded from another place.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jinja2
import nbformat
import yaml

from califkit import CalifkitError
from califkit.exhibits.notebooks import order
from califkit.exhibits.report import WIDGET, Result, read_results
from califkit.runs.folders import git_commit, versions
from califkit.runs.paths import project_root

_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
_OVERVIEW = "overview.md"
_DOCS = ("results", "study", "training", "cluster", "audit", "identification", "judges", "verl")
_LOOKUP = ("constraints", "verifiers", "glossary")
_PICTURES = {"04_study": "study_plane"}
_NO_EXHIBITS = ("00_tour", "01_anchors", "02_train", "03_evaluate", "05_campaign")


class SiteError(CalifkitError, RuntimeError):
    """The site cannot be built; the message says what is missing or which links lead nowhere."""


@dataclass(frozen=True)
class Card:
    """An exhibit on the first page; ``picture`` is a file of the profile, ``fragment`` the
    HTML of its printed table."""

    name: str
    title: str
    this_run: str = ""
    paper: str = ""
    picture: str | None = None
    fragment: str | None = None


def build_site(profile: str) -> Path:
    """Build the site of a profile from its executed notebooks and figures; its first page.

    It is written to ``build/site/<profile>``. `SiteError` if no notebook of the profile has been
    executed, or a link inside the site leads nowhere.
    """
    root = project_root()
    figures = root / "figures" / profile
    results = read_results(figures / "report")
    if not results:
        raise SiteError(
            f"{figures}: no executed notebooks; run: califkit reproduce --profile {profile}"
        )
    documents = [root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs")]
    if missing := [path for path in documents if not path.exists()]:
        raise SiteError(f"{missing[0]}: no such file; the site takes a whole checkout")
    target = root / "build" / "site" / profile
    shutil.rmtree(target, ignore_errors=True)
    pages = target / "pages"
    documents = [*documents[:-1], *sorted(documents[-1].glob("*.md"))]
    names = order()
    for path in documents:
        place = _OVERVIEW if path.name == "README.md" else path.relative_to(root)
        _write(pages / place, _relinked(path.read_text(encoding="utf-8"), path, root, pages))
    for name in names:
        _copy_notebook(name, figures, root, pages)
    shutil.copytree(
        figures, pages / "figures" / profile, dirs_exist_ok=True, ignore=lambda *_: ["report"]
    )
    reference = list(_write_reference(root / "califkit", pages))
    cards = [_card(name, root, figures) for name in names if name not in _NO_EXHIBITS]
    _write_first_page(pages, profile, cards, results)
    _build(target, profile, names, reference)
    return target / "html" / "index.html"


def _copy_notebook(name: str, figures: Path, root: Path, pages: Path) -> None:
    """As executed, or as it is if it has not been, with what it comes to below the claim.

    Links lead to pages as they will be called, since MkDocs does not look into notebooks.
    """
    original = root / "notebooks" / f"{name}.ipynb"
    executed = figures / "report" / original.name
    notebook = nbformat.read(executed if executed.exists() else original, as_version=4)
    if not executed.exists():
        notebook.cells[0].source += "\n\n**Not executed in this profile.**"
    elif said := _conclusion(name, figures):
        lines = [f"**{source.capitalize()}**: {sentence}" for source, sentence in said.items()]
        notebook.cells[0].source += "\n\n> " + "\n>\n> ".join(lines)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            text = _relinked(cell.source, original, root, pages)
            cell.source = _LINK.sub(lambda link: _as_page(link[1]), text)
        for output in cell.get("outputs", []):
            if WIDGET in output.get("data", {}):
                output.data = {"text/plain": "controls that act in JupyterLab"}
    _write(pages / "notebooks" / original.name, nbformat.writes(notebook))


def _as_page(link: str) -> str:
    return link if ":" in link else re.sub(r"\.(md|ipynb)$", ".html", link)


def _relinked(text: str, path: Path, root: Path, pages: Path) -> str:
    """A document whose links to files of the repository lead to copies of them in the site."""

    def relinked(link: re.Match[str]) -> str:
        if ":" in link[1]:
            return link[1]
        linked = Path(os.path.normpath(path.parent / unquote(link[1])))
        if not (linked.exists() and linked.is_relative_to(root)):
            raise SiteError(f"{path}: the link {link[1]!r} leads nowhere")
        inside = linked.relative_to(root)
        if inside == Path("README.md"):
            return link[1].replace("README.md", _OVERVIEW)
        if linked.is_dir():
            _write(pages / inside / "index.md", _listing(linked, inside))
            return f"{link[1].rstrip('/')}/index.md"
        if linked.suffix not in (".md", ".ipynb") or inside.parts[0] == "figures":
            (pages / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(linked, pages / inside)
        return link[1]

    return _LINK.sub(relinked, text)


def _listing(folder: Path, inside: Path) -> str:
    names = sorted(f"{p.name}/" if p.is_dir() else p.name for p in folder.iterdir())
    lines = [f"# {inside}", "", f"In the repository: {len(names)} entries.", ""]
    return "\n".join([*lines, *(f"- `{name}`" for name in names)]) + "\n"


def _write_reference(package: Path, pages: Path) -> Iterator[dict[str, str]]:
    """A page for each room of the library, written from its docstrings."""
    for room in sorted(package.iterdir()):
        if room.suffix == ".py" and room.name not in ("__init__.py",):
            modules = [f"{package.name}.{room.stem}"]
        elif (room / "__init__.py").exists():
            inside = sorted(path for path in room.rglob("*.py") if path.name != "__init__.py")
            dotted = [".".join(p.relative_to(package.parent).with_suffix("").parts) for p in inside]
            modules = [f"{package.name}.{room.name}", *dotted]
        else:
            continue
        page = Path("reference") / f"{room.stem}.md"
        directives = "\n".join(f"::: {module}\n" for module in modules)
        _write(pages / page, f"# {package.name}.{room.stem}\n\n{directives}")
        yield {room.stem: str(page)}


def _card(name: str, root: Path, figures: Path) -> Card:
    """A picture goes by the name of the notebook, a printed table by its first word, ``tab1``."""
    cells = nbformat.read(root / "notebooks" / f"{name}.ipynb", as_version=4).cells
    title = cells[0].source.partition("\n")[0].removeprefix("# ")
    said = _conclusion(name, figures)
    picture, table = (
        figures / f"{_PICTURES.get(name, name)}.png",
        figures / f"{name.split('_')[0]}.html",
    )
    return Card(
        name,
        title,
        said.get("this run", ""),
        said.get("paper", ""),
        picture.name if picture.exists() else None,
        table.read_text(encoding="utf-8") if table.exists() else None,
    )


def _conclusion(name: str, figures: Path) -> dict[str, str]:
    """What `califkit.exhibits.exhibit.Exhibit.conclude` wrote, if the notebook has said it."""
    path = figures / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _write_first_page(
    pages: Path, profile: str, cards: Iterable[Card], results: Iterable[Result]
) -> None:
    source = resources.files("califkit.exhibits").joinpath("resources/site.md.j2")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(source.read_text("utf-8")).render(
        profile=profile,
        cards=list(cards),
        results=list(results),
        versions=versions() | {"commit": git_commit() or "unknown"},
    )
    _write(pages / "index.md", text)


def _build(
    target: Path, profile: str, notebooks: list[str], reference: list[dict[str, str]]
) -> None:
    try:
        from mkdocs.commands.build import build
        from mkdocs.config import load_config
        from mkdocs.exceptions import MkDocsException
    except ImportError as error:
        raise SiteError(
            f"the site is built with MkDocs: pip install 'califkit[dev]' ({error})"
        ) from error

    source = resources.files("califkit.exhibits").joinpath("resources/mkdocs.yml")
    config: dict[str, Any] = yaml.safe_load(source.read_text("utf-8"))
    for name in ("site.css", "site.js"):
        text = resources.files("califkit.exhibits").joinpath(f"resources/{name}").read_text("utf-8")
        _write(target / "pages" / name, text)
    config |= {"docs_dir": "pages", "site_dir": "html", "site_name": f"CaLIF: profile {profile}"}
    config["nav"] = [
        {"Exhibits": "index.md"},
        {"Overview": _OVERVIEW},
        {"Notebooks": [f"notebooks/{name}.ipynb" for name in notebooks]},
        {"Documentation": [f"docs/{name}.md" for name in _DOCS]},
        {"Look up": [f"docs/{name}.md" for name in _LOOKUP]},
        {"Reference": reference},
        {"Project": ["CHANGELOG.md", "CONTRIBUTING.md"]},
    ]
    for plugin in config["plugins"]:
        if isinstance(plugin, dict) and "mkdocstrings" in plugin:
            plugin["mkdocstrings"]["handlers"]["python"]["paths"] = [str(project_root())]
    path = target / "mkdocs.yml"
    _write(path, yaml.safe_dump(config, sort_keys=False))
    warnings = _Warnings()
    logger = logging.getLogger("mkdocs")
    logger.addHandler(warnings)
    try:
        loaded = load_config(str(path))
        loaded.plugins.on_startup(command="build", dirty=False)
        build(loaded)
    except MkDocsException as error:
        raise SiteError("\n".join([f"{path}: {error}", *warnings.messages])) from error
    finally:
        logger.removeHandler(warnings)
    (target / "html" / "404.html").unlink()  # for a web server's root, with absolute links


class _Warnings(logging.Handler):
    """Keeps what MkDocs warns of, which it counts as failure but does not put into its error."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
