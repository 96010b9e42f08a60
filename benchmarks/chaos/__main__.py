"""Disturbs small runs by random faults and compares each result with the undisturbed one.

python -m benchmarks.chaos --seeds 200 --results /tmp/chaos.jsonl prints the part of the page. Seeds that are in the
file of results already are not run again. Full disks and cut networks need root, shifted clocks Debian's libfaketime.
`--pods` disturbs a gang in pods instead, of the cluster that KUBECONFIG names.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.chaos import faults
from benchmarks.chaos.programs import ALL
from benchmarks.chaos.trials import Bench, Outcome


def main() -> None:
    """Run the seeds, and print the table of all results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="number of trials")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--results", type=Path, help="file of JSON lines to add to")
    names = [program.name for program in ALL]
    parser.add_argument("--programs", nargs="*", choices=names, default=names, help="programs to disturb")
    parser.add_argument("--folder", type=Path, help="folder of undisturbed runs to keep, by default a temporary one")
    parser.add_argument("--warm", action="store_true", help="fork the commands from a process that has TensorFlow")
    parser.add_argument("--pods", action="store_true", help="disturb a gang of pods; TRAINYARD_IMAGE names their image")
    parser.add_argument("--node-command", default="", help="what stops and starts a node by name: docker, for kind")
    options = parser.parse_args()
    known = _read(options.results)
    programs = tuple(program for program in ALL if program.name in options.programs)
    if options.warm:
        from tests import warm

        warm.start()
        warm.use()
    with ExitStack() as stack:
        if options.pods:
            from benchmarks.chaos.pods import Pods

            trial = Pods(stack, options.node_command).trial
        else:
            bench = Bench(options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos"))))

            def trial(seed: int) -> Outcome:
                return bench.trial(seed, *faults.draw(seed, programs))

        for seed in range(options.first, options.first + options.seeds):
            if any(outcome["seed"] == seed and (outcome["program"] in names) != options.pods for outcome in known):
                continue
            outcome = trial(seed)
            line = outcome.to_json()
            print(line, file=sys.stderr, flush=True)
            known.append(json.loads(line))
            if options.results:
                with options.results.open("a", encoding="utf-8") as stream:
                    stream.write(f"{line}\n")
    print(section(known))


def _read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def section(outcomes: list[dict[str, Any]]) -> str:
    """Return the part of the page."""
    rows: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = defaultdict(list)
    for outcome in outcomes:
        for fault in outcome["injected"]:
            rows[fault["kind"]].append((fault, outcome))
    order = [*faults.KINDS, *sorted(rows.keys() - faults.KINDS.keys())]
    body = "\n".join(_row(kind, rows[kind]) for kind in order if rows[kind])
    disturbed = [outcome for outcome in outcomes if outcome["injected"]]
    total = sum(outcome["seconds"] for outcome in disturbed)
    goodput = sum(outcome["undisturbed_seconds"] for outcome in disturbed) / total if total else 1.0
    count = sum(map(len, rows.values()))
    wrong = sum(bool(outcome["wrong"]) for outcome in disturbed)
    return f"""{len(disturbed)} runs with {count} faults; results lost or wrong: **{wrong}**. Goodput {goodput:.0%}.

| fault | injected | without a hand | after a rerun | lost or wrong | seconds lost, median | worst |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
{body}"""


def _row(kind: str, made: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    wrong = sum(bool(outcome["wrong"]) for _, outcome in made)
    alone = sum(bool(fault["survived"]) and not outcome["wrong"] for fault, outcome in made)
    lost = [
        max(0.0, outcome["seconds"] - outcome["undisturbed_seconds"]) / len(outcome["injected"]) for _, outcome in made
    ]
    counts = f"{len(made)} | {alone} | {len(made) - alone - wrong} | {wrong}"
    return f"| {kind} | {counts} | {statistics.median(lost):.1f} | {max(lost):.1f} |"


if __name__ == "__main__":
    main()
