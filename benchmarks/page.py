"""The page of results, docs/benchmarks.md: every benchmark owns what stands between its markers, and nothing else.

    <!-- benchmark: scaling -->
    written by the benchmark
    <!-- end of benchmark: scaling -->

Headings, and what people wrote about the figures, stand outside and stay, as do the parts of benchmarks that did not
run.
"""

from __future__ import annotations

import re

_PART = r"(<!-- benchmark: {name} -->\n).*?(<!-- end of benchmark: {name} -->\n)"


def names(page: str) -> list[str]:
    """Return the benchmarks that own a part of the page, in its order."""
    return re.findall(r"^<!-- benchmark: (\w+) -->$", page, re.MULTILINE)


def with_parts(page: str, parts: dict[str, str]) -> str:
    """Return the page with the `parts` of those benchmarks, by name. Raises `ValueError` if it has no part so named."""
    for name, text in parts.items():
        pattern = re.compile(_PART.format(name=re.escape(name)), re.DOTALL)
        found = pattern.findall(page)
        if len(found) != 1:
            raise ValueError(
                f"docs/benchmarks.md: {len(found)} parts of the benchmark {name}. Give it one pair of markers."
            )
        page = pattern.sub(lambda match, text=text: f"{match[1]}{text.strip()}\n{match[2]}", page)  # type: ignore[misc]
    return page
