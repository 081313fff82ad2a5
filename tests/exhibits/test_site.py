"""The site of a profile: complete, every link leads somewhere, nothing comes from elsewhere."""

import base64
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from nbformat.v4 import new_output

from califkit.exhibits.notebooks import order
from califkit.exhibits.report import Result, write_results
from califkit.exhibits.site import SiteError, build_site
from califkit.runs.jsonl import write_json

ROOT = Path(__file__).resolve().parents[2]
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
LOADED = re.compile(
    r"<script[^>]*\ssrc=[\"']https?:|<link[^>]*(stylesheet|preconnect)[^>]*https?:"
    r"|<iframe\b[^>]*https?:|@import\s|url\(\s*[\"']?https?:|<img[^>]*src=[\"']https?:"
)


class Links(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: set[str] = set()
        self.images: list[dict[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.found += [given[name] for name in ("href", "src") if given.get(name)]
        self.ids |= {given["id"]} if "id" in given else set()
        self.images += [given] if tag == "img" else []


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The repository's own documents, with two notebooks executed, one of which failed."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("docs", "notebooks", "califkit", "params", "examples", "benchmarks", "results"):
        (root / name).symlink_to(ROOT / name)
    for path in [*ROOT.glob("*.md"), *ROOT.glob("*.cff")]:
        shutil.copy(path, root)
    figures = root / "figures" / "test"
    shutil.copytree(ROOT / "figures" / "laptop", figures.parent / "laptop")
    (figures / "report").mkdir(parents=True)
    for name in ("fig4_region", "tab1_rubrics"):
        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
        cell.outputs = [new_output("stream", name="stdout", text=f"printed by {name}")]
        nbformat.write(notebook, figures / "report" / f"{name}.ipynb")
    (figures / "fig4_region.png").write_bytes(base64.b64decode(PIXEL))
    (figures / "tab1.html").write_text("<table><tr><td>best of all</td></tr></table>")
    words = {"this run": "seen < here", "paper": "printed & there"}
    write_json(figures / "fig4_region.json", words)
    results = {
        "fig4_region": Result("fig4_region", "ok", 1.5, "2026-01-01 10:00 UTC"),
        "tab1_rubrics": Result("tab1_rubrics", "failed", 2.5, error="cell [2]: E: a|b <i>"),
    }
    write_results(figures / "report", results, known=list(results))
    return root


@pytest.fixture(scope="module")
def site(checkout):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALIFKIT_ROOT", str(checkout))
        return build_site("test").parent


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Links]:
    return {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


@pytest.mark.slow
def test_every_link_leads_to_a_place_in_the_site(site, pages):
    dead = []
    for page, links in pages.items():
        for link in links.found:
            if re.match(r"[a-z]+:|//", link):
                continue
            path, _, fragment = link.partition("#")
            target = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            known = pages.get(target)
            missing = fragment and known and unquote(fragment) not in known.ids
            if not target.is_file() or missing:
                dead.append(f"{page.relative_to(site)}: {link}")
    assert not dead, "\n".join(dead[:20])
    assert len(pages) > len(order()) + 10


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site, pages):
    for path in [*pages, *site.rglob("*.css")]:
        found = LOADED.search(path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(site)}: {found[0]}"


@pytest.mark.slow
def test_the_first_page_shows_every_exhibit_with_ours_and_the_papers_words(site, pages):
    text = (site / "index.html").read_text(encoding="utf-8")
    exhibits = [name for name in order() if name.startswith(("fig", "tab", "04"))]
    for name in exhibits:
        assert f'href="notebooks/{name}.html"' in text, name
    assert "seen &lt; here" in text and "printed &amp; there" in text
    assert "best of all" in text, "the printed table is its own thumbnail"
    shown = {image["src"]: image["alt"] for image in pages[site / "index.html"].images}
    assert "Figure 4" in shown["figures/test/fig4_region.png"]
    assert "cell [2]: E: a|b &lt;i&gt;" in text
    assert re.search(r"transformers \d", text)


@pytest.mark.slow
def test_notebooks_are_as_executed_and_say_so_where_they_are_not(site):
    executed = (site / "notebooks" / "fig4_region.html").read_text(encoding="utf-8")
    assert "printed by fig4_region" in executed and "seen &lt; here" in executed
    other = (site / "notebooks" / "fig5_main_results.html").read_text(encoding="utf-8")
    assert "Not executed in this profile." in other


@pytest.mark.slow
def test_the_reference_has_what_the_docstrings_say(site):
    page = (site / "reference" / "rewards.html").read_text(encoding="utf-8")
    assert 'id="califkit.rewards.rules.calif_reward"' in page
    page = (site / "reference" / "models.html").read_text(encoding="utf-8")
    assert re.search(r'class="highlight">.*&gt;&gt;&gt; </span>', page), "examples are code"


def test_a_profile_of_which_no_notebook_was_run_is_refused(checkout, monkeypatch):
    monkeypatch.setenv("CALIFKIT_ROOT", str(checkout))
    with pytest.raises(SiteError, match="no executed notebooks; run: califkit reproduce"):
        build_site("never")
