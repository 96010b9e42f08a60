"""The report in a real browser: the figures are drawn, nothing fails, nothing is asked of the network."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, chromium, needs_chromium

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))
from report_folders import SECONDS, recipe, whole_run

from trainyard.report import plots
from trainyard.report.outputs import read
from trainyard.report.plots import Mark, chart
from trainyard.report.report import render

pytestmark = needs_chromium

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with chromium() as page:
        yield page


def opened(browser: Page, page: str, folder: Path) -> tuple[str, list[str], list[str]]:
    """Return the DOM after the page's scripts ran, the browser's complaints, and what the page asked for."""
    (folder / "report.html").write_text(page, encoding="utf-8")
    browser.open(folder / "report.html")
    if "data-figure=" in page:
        browser.wait("document.documentElement.dataset.drawn || document.documentElement.dataset.error")
    asked = [url for url in browser.requests if not url.startswith(("data:", folder.as_uri()))]
    return browser.run("document.documentElement.outerHTML"), browser.complaints, asked


@pytest.mark.parametrize("text", ["seven", HOSTILE], ids=["plain", "hostile"])
def test_a_browser_draws_every_figure_and_asks_for_nothing(browser, tmp_path, text):
    page = render(text, recipe(text), read(whole_run(tmp_path / "run", text)), SECONDS)
    dom, complaints, asked = opened(browser, page, tmp_path)
    assert complaints == asked == []
    wanted = len(re.findall(r"data-figure=", page))
    (drawn,) = re.findall(r'<html[^>]* data-drawn="(\d+)"', dom)
    assert int(drawn) == wanted == 9
    for part in dom.split('data-figure="')[1:]:
        assert 'class="main-svg"' in part, part[:40]
    assert "data-error" not in dom[:500]
    assert "owned" not in dom[: dom.index("</title>")].replace("document.title='owned'", "")


def test_what_got_in_all_the_same_would_neither_run_nor_ask(browser, tmp_path):
    intruder = (
        "<script>document.documentElement.dataset.owned = 1</script><img src='https://example.invalid/a.png'></main>"
    )
    page = render("digits", recipe(), read({}), {}).replace("</main>", intruder)
    dom, complaints, asked = opened(browser, page, tmp_path)
    assert "data-owned" not in dom and asked == []
    assert any("Content Security Policy" in complaint for complaint in complaints)
    # Without the policy the same page is seen to do both, so the test above can fail.
    (tmp_path / "open").mkdir()
    dom, _complaints, asked = opened(browser, re.sub("<meta http-equiv[^>]*>", "", page), tmp_path / "open")
    assert "data-owned" in dom and asked == ["https://example.invalid/a.png"]


@pytest.mark.parametrize("width", [1300, 400])
def test_a_page_of_charts_is_drawn_as_the_report_is(browser, tmp_path, width):
    marks = [Mark(1, 10, HOSTILE, True, 8, 20), Mark(100, 20)]
    charts = {
        HOSTILE: chart(("x", HOSTILE), marks, {"a": [(1, 10), (100, 20)]}, [(1, 5), (100, 30)], log_x=True),
        "bars": chart(("x", "y"), marks, categories=["a", HOSTILE], bars=True),
    }
    (tmp_path / "a.html").write_text(plots.page("a", [], charts, []), encoding="utf-8")
    browser.open(tmp_path / "a.html", width)
    browser.wait("document.documentElement.dataset.drawn || document.documentElement.dataset.error")
    assert browser.run("document.documentElement.dataset.drawn") == "2" and browser.complaints == []
    assert browser.run("document.title") == "a" and browser.run("document.documentElement.scrollWidth") <= width
