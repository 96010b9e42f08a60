"""The report in a real browser: the figures are drawn, nothing fails, nothing is asked of the network."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))
from report_folders import SECONDS, recipe, whole_run

from trainyard.report.outputs import read
from trainyard.report.report import render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="no chromium here; CI installs one and runs this"
)

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def opened(page: str, folder: Path) -> tuple[str, str]:
    """Return the DOM after the page's scripts ran, and what the browser logged: the console and the page's requests.

    The browser's own requests (time, updates) have no origin.
    """
    (folder / "report.html").write_text(page, encoding="utf-8")
    network = folder / "network.json"
    done = subprocess.run(
        [
            CHROMIUM or "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}",
            f"--log-net-log={network}",
            "--window-size=1400,3000",
            "--virtual-time-budget=8000",
            "--dump-dom",
            f"file://{folder / 'report.html'}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return done.stdout, console + "\n".join(re.findall(r'"initiator":"(?!not an origin")[^"]*".*', network.read_text()))


@pytest.mark.parametrize("text", ["seven", HOSTILE], ids=["plain", "hostile"])
def test_a_browser_draws_every_figure_and_asks_for_nothing(tmp_path, text):
    page = render(text, recipe(text), read(whole_run(tmp_path / "run", text)), SECONDS)
    dom, complaints = opened(page, tmp_path)
    assert complaints == ""
    wanted = len(re.findall(r"data-figure=", page))
    (drawn,) = re.findall(r'<html[^>]* data-drawn="(\d+)"', dom)
    assert int(drawn) == wanted == 9
    for part in dom.split('data-figure="')[1:]:
        assert 'class="main-svg"' in part, part[:40]
    assert "data-error" not in dom[:500]
    assert "owned" not in dom[: dom.index("</title>")].replace("document.title='owned'", "")


def test_what_got_in_all_the_same_would_neither_run_nor_ask(tmp_path):
    intruder = (
        "<script>document.documentElement.dataset.owned = 1</script><img src='https://example.invalid/a.png'></main>"
    )
    page = render("digits", recipe(), read({}), {}).replace("</main>", intruder)
    dom, complaints = opened(page, tmp_path)
    assert "data-owned" not in dom
    assert "Content Security Policy" in complaints and "initiator" not in complaints
    # Without the policy the same page is seen to do both, so the test above can fail.
    (tmp_path / "open").mkdir()
    dom, complaints = opened(re.sub("<meta http-equiv[^>]*>", "", page), tmp_path / "open")
    assert "data-owned" in dom and "initiator" in complaints
