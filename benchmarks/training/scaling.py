"""Two workers on a core each against one worker on one core, with the same batch a worker, and what checkpoints cost.

    python -m benchmarks.training.scaling [MODEL]
    python -m benchmarks.training.scaling elastic
    python -m benchmarks.training.scaling halves

prints its parts of docs/benchmarks.md. Each worker is a process pinned to a core, in a scheduling group of raised
priority where that is allowed. All are started first and measured in turn, so that another load meets all of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from trainyard.contract.artifacts.train import Training
from trainyard.spec import plain_yaml
from trainyard.spec import recipe as recipes
from trainyard.steps.train.gang.supervisor import HEAP_VARIABLES
from trainyard.steps.train.loop.checkpoint import CHECKPOINT_SECONDS, MAX_OVERHEAD

ROUNDS = 5
_RANGE = '{"counts": [1, 2], "replace_seconds": 60, "start_deadline_seconds": 300}'
_SUBREAPER = 36  # prctl(2)
CASES = [
    ("cnn_small", 32, 1, 8, "global"),
    ("resnet50", 8, 1, 5, "global"),
    ("resnet50", 8, 1, 5, "worker"),
    ("resnet50", 32, 1, 2, "global"),
    ("resnet50", 32, 1, 2, "worker"),
    ("resnet50", 8, 4, 2, "global"),
    ("resnet50", 8, 4, 2, "worker"),
    ("resnet50", 8, 16, 1, "global"),
]
"""Model, images a worker computes at once, parts of a batch, steps a measurement, `train.batch_statistics`; images of
96 x 96 pixels."""


def measure(model: str, images: int, parts: int, steps: int, batch_statistics: str) -> dict[str, Any]:
    """Return milliseconds a step by kind, a value a round, and what a checkpoint costs."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "benchmarks.data.random_images", f"{folder}/images"], check=True)
        arguments = [model, str(images), str(parts), batch_statistics, f"{folder}/images", folder]
        alone = [_Worker(core, arguments) for core in (0, 1)]
        ports = [20_000 + secrets.randbelow(10_000) for _ in range(2)]
        gang = [_Worker(core, arguments, ports) for core in (0, 1)]
        try:
            for worker in (*alone, *gang):
                worker.answer()
            names = ("alone", "both", "gang", "all_reduce", "save", "blocked", "apart")
            result: dict[str, Any] = {name: [] for name in names}
            for _ in range(ROUNDS):
                result["alone"].append(_together(alone[:1], "step", steps)["ms"])
                result["both"].append(_together(alone, "step", steps)["ms"])
                result["gang"].append(_together(gang, "step", steps)["ms"])
                result["all_reduce"].append(_together(gang, "all_reduce", steps)["ms"])
                saved = _together(alone[:1], "save", steps)
                result["save"].append(saved["ms"])
                result["blocked"].append(saved["blocked_ms"])
                result["apart"].append(saved["apart_seconds"])
            about = _together(alone[:1], "about", 1)
            return {
                **result,
                **about,
                "model": model,
                "images": images,
                "parts": parts,
                "steps": steps,
                "of": batch_statistics,
            }
        finally:
            for worker in (*alone, *gang):
                worker.process.kill()


def sections(results: list[dict[str, Any]]) -> dict[str, str]:
    """Return the two parts of the page."""
    rows, saves = [], []
    for result in results:
        model, parts = result["model"], result["parts"]
        middle = {name: statistics.median(result[name]) for name in ("alone", "both", "gang", "all_reduce", "blocked")}
        one_ratio = [one / two for one, two in zip(result["alone"], result["gang"], strict=True)]
        both_ratio = [both / two for both, two in zip(result["both"], result["gang"], strict=True)]
        rows.append(
            f"| `{model}` | {result['images']} | {parts} | {result['of']} | {result['gradient_bytes'] / 1e6:.1f} | "
            f"{middle['alone'] / parts:.1f} | {middle['both'] / parts:.1f} | {middle['gang'] / parts:.1f} | "
            f"{middle['all_reduce']:.1f} | {_spread(one_ratio)} | {_spread(both_ratio)} |"
        )
        if parts > 1 or result["of"] != CASES[0][4]:
            continue
        beside = [result["steps"] * (save - one) for save, one in zip(result["save"], result["alone"], strict=True)]
        cost, apart = statistics.median(beside), max(CHECKPOINT_SECONDS, statistics.median(result["apart"]))
        saves.append(
            f"| `{model}` | {result['state_bytes'] / 1e6:.1f} | {middle['blocked']:.1f} | "
            f"{1000 * MAX_OVERHEAD * statistics.median(result['apart']):.0f} | {cost:.0f} | {apart:.0f} | "
            f"{cost / apart / 10:.2f} |"
        )
    return {"scaling": _scaling("\n".join(rows)), "checkpoints": _checkpoints("\n".join(saves))}


def _scaling(rows: str) -> str:
    return f"""Milliseconds per part of a step, one core a worker, images of 96 pixels, SGD, median of {ROUNDS}
interleaved rounds. `train.accumulation_steps` parts make a step, which sums the gradients once; *statistics* is
`train.batch_statistics`. *Both* are two independent workers, one a core. Efficiency is the time of one worker, or of
both, divided by the gang's, with the smallest and largest round.

| network | images a worker and part | parts | statistics | gradients, MB | one | both | gang of two | all-reduce \
alone | of one | of both |
| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}"""


def _checkpoints(rows: str) -> str:
    return f"""One worker on one core, which also writes the checkpoints. *Waited* is what a step waits for the
state, *counted* adds the CPU time of writing, *in all* is the total delay of the next steps. *Apart* is the time
between checkpoints within an epoch, by default; *share* is the largest share of the training that they then cost.

| network | state, MB | waited, ms | counted, ms | in all, ms | apart, s | share, % |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}"""


def halves() -> str:
    """Return the part of the page about a gang of four, each with a process of half a core (control groups, root)."""
    model, images, parts, steps, batch_statistics = CASES[0]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        subprocess.run([sys.executable, "-m", "benchmarks.data.random_images", f"{folder}/images"], check=True)
        arguments = [model, str(images), str(parts), batch_statistics, f"{folder}/images", folder]
        ports = [20_000 + secrets.randbelow(10_000) for _ in range(4)]
        alone, gang = ([_Worker(index, arguments, given) for index in range(4)] for given in (None, ports))
        for worker in (*alone, *gang):
            stack.callback(worker.process.kill)
        for worker in (*alone, *gang):
            worker.answer()
            stack.enter_context(_half_core(worker.process.pid))
        seconds = [[_together(team, "step", steps)["ms"] for team in (alone, gang)] for _ in range(ROUNDS)]
    one, four = (statistics.median(each) for each in zip(*seconds, strict=True))
    return f"""Four workers, each a process with half a core (5 of each 10 ms), `{model}` with {images} images a
worker: {four:,.0f} ms a step in a gang, {one:,.0f} ms independently; efficiency
{_spread([before / together for before, together in seconds])}."""


@contextmanager
def _half_core(process: int) -> Iterator[None]:
    groups = Path("/sys/fs/cgroup")
    version_2 = (groups / "cgroup.controllers").exists()
    group = groups / ("" if version_2 else "cpu") / f"trainyard-{process}"
    group.mkdir()
    limits = {"cpu.max": "5000 10000"} if version_2 else {"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "5000"}
    for name, value in limits.items():
        (group / name).write_text(value)
    (group / "cgroup.procs").write_text(str(process))
    try:
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(process))
        group.rmdir()


def elastic() -> str:
    """Return the part of the page about a range of workers, for a gang of two that nothing disturbs."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)  # the time of processes whose parent was killed counts here, too
    options = {"fixed": [], "elastic": ["--elastic", _RANGE]}
    seconds: dict[str, list[float]] = {name: [] for name in options}
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipes.load("digits", ["train.workers=2", "train.epochs=120"]).model_dump(mode="json")
        Path(folder, "recipe.yaml").write_text(plain_yaml.dump(recipe), encoding="utf-8")
        recipe_file, step = f"--recipe={folder}/recipe.yaml", [sys.executable, "-m", "trainyard.steps"]
        examples = f"{folder}/examples"
        subprocess.run([*step, "preprocess", recipe_file, "--output", examples], check=True, stderr=subprocess.DEVNULL)
        for pair in range(2 * ROUNDS):
            for name in sorted(options, reverse=bool(pair % 2)):
                output, before = f"{folder}/{name}-{pair}", _cpu_seconds()
                uris = ["--examples", examples, "--checkpoints", f"{output}-checkpoints", "--output", output]
                command = [*step, "train", recipe_file, *uris, *options[name]]
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
                seconds[name].append(_cpu_seconds() - before)
        steps = Training.read(output).steps
    ratios = [one / two for one, two in zip(seconds["elastic"], seconds["fixed"], strict=True)]
    mean, error = statistics.mean(ratios), statistics.stdev(ratios) / len(ratios) ** 0.5
    each = {name: 1000 * statistics.median(values) / steps for name, values in seconds.items()}
    return f"""CPU time of a gang of two that nothing disturbs, `digits` for {steps:,} steps, start-up included:
`workers: {{min: 1, max: 2}}` against `workers: 2`: **{100 * (mean - 1):+.1f} %** (standard error {100 * error:.1f} %,
{len(ratios)} interleaved pairs), {each["elastic"]:.1f} against {each["fixed"]:.1f} ms per step."""


def _cpu_seconds() -> float:
    """Return the CPU time of all processes that were started here and have ended."""
    with suppress(ChildProcessError):
        while os.wait():
            pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Worker:
    """A process that takes steps when it is told to."""

    def __init__(self, index: int, arguments: list[str], ports: list[int] | None = None) -> None:
        environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        if ports:
            cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
            environment |= HEAP_VARIABLES
            environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.training.scaling_worker",
                str(index),
                str(len(ports or [1])),
                *arguments,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        with suppress(OSError):
            # The group of a session is what Linux schedules by; its nice value is not that of the process.
            Path(f"/proc/{self.process.pid}/autogroup").write_text("-15")

    def tell(self, command: str, count: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{command} {count}\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line: dict[str, Any] = json.loads(self.process.stdout.readline())
        return line


def _together(workers: list[_Worker], command: str, count: int) -> dict[str, Any]:
    """Return the slowest worker's answer."""
    for worker in workers:
        worker.tell(command, count)
    return max((worker.answer() for worker in workers), key=lambda answer: answer.get("ms", 0))


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    chosen = [measure(*case) for case in CASES if case[0] in (sys.argv[1:] or case)]
    parts = {"elastic": elastic, "halves": halves}
    print("\n\n".join(sections(chosen).values()) if chosen else parts[sys.argv[1]]())
