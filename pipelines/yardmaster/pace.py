"""What a training that goes on spends its time on, from the lines that it writes, and what would make it faster."""

from __future__ import annotations

import json
import re
from typing import Any

from yardmaster.durations import lasting

# Chosen: shares of the time from which on something is worth a person's attention. That of the input comes from a pair
# of steps, which vary.
_INPUT = 0.25
_ALL_REDUCE = 0.3
_SAVE = 0.1
_EVAL = 0.3


def last_event(log: str, kind: str) -> dict[str, Any] | None:
    """Return the facts of the last event `kind` in a log, as JSON or plain text, None where there is none whole."""
    for line in reversed(log.splitlines()):
        at = line.find(f'{{"event": "{kind}"')
        if at >= 0:
            try:
                return dict(json.loads(line[at:]))
            except ValueError:
                continue
        if found := re.search(rf"(?:^|\s){kind} ((?:\w+=\S+ ?)+)$", line):
            return dict(pair.split("=", 1) for pair in found[1].split())
    return None


def verdict(log: str) -> tuple[str, str]:
    """Return what bounds the training as a word for programs and as the end of a sentence; '' twice where it is not known yet."""
    told = last_event(log, "pace")
    try:
        return _verdict({name: float(value) for name, value in told.items() if name != "event"}) if told else ("", "")
    except (KeyError, ValueError):  # of another version
        return "", ""


def _verdict(pace: dict[str, float]) -> tuple[str, str]:
    step, left = pace["step_ms"], pace["steps"] - pace["step"]
    where = (
        f"step {pace['step']:,.0f} of {pace['steps']:,.0f}, {pace['examples_per_second']:,.0f} examples/s, "
        f"about {lasting(left * step / 1000)} of steps left"
    )
    waited = 1 - pace["rested_step_ms"] / step
    summed = pace["all_reduce_ms"] / step
    total = sum(value for name, value in pace.items() if name.endswith("_seconds"))
    saved, judged = (pace[f"{name}_seconds"] / max(total, 1e-9) for name in ("save", "eval"))
    if waited > _INPUT:
        cause, why = (
            "input-bound",
            (
                f"it waits for its input {waited:.0%} of each step ({step:,.1f} ms; {pace['rested_step_ms']:,.1f} after a pause). "
                "Give it more cores (resources.requests.cpu of the pool), or lower data.image_size or train.augment"
            ),
        )
    elif summed > _ALL_REDUCE:
        cause, why = (
            "all-reduce-bound",
            (
                f"its workers sum gradients {summed:.0%} of each step ({pace['all_reduce_ms']:,.1f} of {step:,.1f} ms). "
                "Raise train.batch_size, take fewer workers, or a pool with a faster network"
            ),
        )
    elif saved > _SAVE:
        cause = "checkpoint-bound"
        why = f"it waits for its checkpoints {saved:.0%} of the time. Raise train.checkpoints.every_steps, or take a faster storage"
    elif judged > _EVAL:
        cause = "eval-bound"
        why = f"it evaluates {judged:.0%} of the time. Lower data.split.eval, or raise train.batch_size"
    else:
        cause = "compute-bound"
        why = (
            "it computes most of the time. What is faster is a larger train.batch_size where devices have room, or "
            "another pool: trainyard plan"
        )
    return cause, f"{where}; {why}"
