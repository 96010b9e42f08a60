"""Makes the terminal images of README and site from commands that really run: `make screenshots`."""

from __future__ import annotations

import html
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parents[2] / "docs"
ASSETS = DOCS / "assets"
COLUMNS = 100
RUN = "trainyard run digits"
PLAN = "trainyard plan imagenet-resnet50 -e gke --examples 1281167 --set train.batch_size=256"
CHROMIUM = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--window-size=1200,780", "--virtual-time-budget=8000"),
]
_CHARACTER = 12.2  # width of a character in rich's SVG
# rich's own format loads its font from another site.
_FORMAT = re.sub(r"@font-face {{.*?}}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "font-family: Fira Code, monospace", "font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
)


def screen(command: str, folder: Path) -> str:
    """Run a command of `trainyard` and return what a terminal of 100 columns shows at its end."""
    program = str(Path(sys.executable).parent / "trainyard")
    # A terminal without moving parts: colors, and no progress bars.
    terminal = {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TTY_INTERACTIVE": "0", "TERM": "xterm-256color"}
    arguments = [program, *command.split()[1:]]
    ended = subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, **terminal},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return ended.stdout.replace(f"{folder}/", "")


def svg(command: str, shown: str) -> str:
    """Draw a command and what it showed as an SVG that loads nothing."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    console.print(Text.assemble(("$ ", "dim"), (command, "bold")))
    console.print(Text.from_ansi(shown.strip("\n")))
    return console.export_svg(title="", code_format=_FORMAT, unique_id="terminal")


def lines(image: str) -> list[str]:
    """Return the lines of text of such an SVG."""
    rows: dict[int, str] = {}
    for x, row, text in re.findall(r' x="([\d.]+)" [^>]*terminal-line-(\d+)\)">([^<]*)</text>', image):
        before = rows.get(int(row), "").ljust(round(float(x) / _CHARACTER))
        rows[int(row)] = before + html.unescape(text).replace("\xa0", " ")
    return [text.rstrip() for _, text in sorted(rows.items())]


def structure(text: list[str]) -> list[str]:
    """Return the first column of each line that is not empty, with 0 for every number.

    A line indented by four spaces or more continues the cell above, which is too long for the terminal.
    """
    begun = (line for line in text if line.strip() and not line.startswith("    "))
    cells = (re.split(r"\s{2,}|\s?─", line.lstrip("→ "))[0] for line in begun)
    return [re.sub(r"\d[\d.,]*(e[+-]\d+)?", "0", cell) for cell in cells]


def photograph(page: Path, image: Path, folder: Path) -> None:
    """Write the top of an HTML page as a PNG, with the Chromium of this machine."""
    program = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    arguments = [*CHROMIUM, f"--user-data-dir={folder / 'profile'}", f"--screenshot={image}", page.as_uri()]
    subprocess.run([program, *arguments], check=True, capture_output=True, timeout=120)


def main() -> None:
    """Write the images."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (ASSETS / "run.svg").write_text(svg(RUN, screen(RUN, folder)), encoding="utf-8")
        (report,) = (folder / "runs/digits/runs").glob("*/report.html")
        photograph(report, DOCS / "report.png", folder)
        table = screen(PLAN, folder).partition("\n\n")[0]
        shown = "\n".join(line for line in table.splitlines() if "recorded runs" not in line)
        (ASSETS / "plan.svg").write_text(svg(PLAN, shown), encoding="utf-8")


if __name__ == "__main__":
    main()
