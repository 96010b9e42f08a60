"""`make bench` writes the parts of the page that benchmarks own, and loses nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import __main__ as benchmarks
from benchmarks import page

PAGE = benchmarks.PAGE.read_text(encoding="utf-8")


def outside(text: str) -> str:
    """Return what no benchmark owns."""
    return re.sub(r"(?s)(<!-- benchmark: (\w+) -->\n).*?(?=<!-- end of benchmark: \2 -->)", r"\1", text)


def test_writing_every_part_keeps_every_section_and_all_that_people_wrote() -> None:
    new = page.with_parts(PAGE, {name: f"new {name}" for name in page.names(PAGE)})
    assert re.findall("(?m)^## .*$", new) == re.findall("(?m)^## .*$", PAGE)
    assert outside(new) == outside(PAGE) and "A run on Kubeflow" in outside(new)
    assert all(f"new {name}\n<!-- end" in new for name in page.names(PAGE))


def test_a_benchmark_that_does_not_run_keeps_its_part() -> None:
    new = page.with_parts(PAGE, {"command_line": "new"})
    before, after = (re.search(r"(?s)<!-- benchmark: scaling -->.*", text) for text in (PAGE, new))
    assert before and after and before[0] == after[0] and new != PAGE


def test_what_benchmarks_give_has_no_heading_of_its_own_and_a_place_on_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = {"low": 1, "expected": 2, "high": 3, "measured": 2, "load": 1, "plan_cpu_seconds": 0.3}
    monkeypatch.setattr("benchmarks.commands.command_line.measure", lambda: {"trainyard --help": 0.1})
    monkeypatch.setattr("benchmarks.commands.planning.measure", lambda: {"cores": 2, "recipes": {"digits": [run]}})
    written = tmp_path / "benchmarks.md"
    written.write_text(PAGE)
    monkeypatch.setattr(benchmarks, "PAGE", written)
    monkeypatch.setattr("sys.argv", ["benchmarks", "command_line", "planning"])
    benchmarks.main()
    new = written.read_text()
    assert "| `trainyard --help` | 0.10 |" in new and "| digits | 1 | 2 (1 – 3) |" in new
    assert re.findall("(?m)^#.*$", new) == re.findall("(?m)^#.*$", PAGE) and outside(new) == outside(PAGE)
    for name in ("command_line", "planning"):
        (part,) = re.findall(f"(?s)<!-- benchmark: {name} -->(.*)<!-- end of benchmark: {name} -->", new)
        assert part.count("Measured on 20") == 1


def test_every_benchmark_owns_a_part_and_a_page_without_its_markers_is_refused() -> None:
    assert set(benchmarks.BENCHMARKS) | {"checkpoints", "elastic", "halves"} == set(page.names(PAGE))
    with pytest.raises(ValueError, match="0 parts of the benchmark scaling"):
        page.with_parts("# Empty\n", {"scaling": "new"})


def test_an_unknown_benchmark_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "planing"])
    with pytest.raises(SystemExit) as ended:
        benchmarks.main()
    assert ended.value.code == 2
