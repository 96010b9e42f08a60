"""The bottleneck of a running training, from its log, and how to remove it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainyard import events
from trainyard.contract.artifacts.train import Straggler
from trainyard.contract.gang import input_workers_needed
from trainyard.measured import duration_text
from trainyard_control.planning.expectation import Expectation

# Chosen: shares of the time above which something needs attention. The input's share comes from a pair of steps, which
# vary.
_INPUT = 0.25
_ALL_REDUCE = 0.3
_SAVE = 0.1
_EVAL = 0.3
# Required fields of a pace event; events of other versions are ignored.
_FIELDS = ("step", "steps", "examples_per_second", "step_ms", "rested_step_ms", "all_reduce_ms")
_TIMES = ("save_seconds", "eval_seconds")


@dataclass(frozen=True)
class Bottleneck:
    """The bottleneck of a training: a cause for programs and the end of a sentence, both '' if it is not known yet.

    against_plan: slower or faster, if the speed is outside the plan's interval; the sentence then says so.
    """

    cause: str = ""
    sentence: str = ""
    against_plan: str = ""


def verdict(log: str, expected: Expectation | None = None, *, one_machine: bool = False) -> Bottleneck:
    """Find the bottleneck in the newest pace event of the log, and compare the speed with the plan.

    Of an elastic gang, the sentence says why it has fewer workers than it asks for.

    one_machine: no other machine could help.
    """
    pace = events.last(log, "pace", *_FIELDS, *_TIMES)
    try:
        straggler = Straggler.model_validate(pace.pop("straggler")) if pace and "straggler" in pace else None
        numbers = {name: float(value) for name, value in pace.items()} if pace else {}
        found = _verdict(numbers, expected, one_machine, straggler) if pace else Bottleneck()
        return replace(found, sentence="; ".join(filter(None, [found.sentence, _smaller_team(log)])))
    except ValueError:  # not our line
        return Bottleneck()


def _smaller_team(log: str) -> str:
    """Return the reason why the newest team of a gang is smaller than it could be, '' if it is not."""
    team = events.last(log, "started_together", "workers") or {}
    return f"it runs with {team['workers']} of {team['of']} workers: {team.get('why')}" if "of" in team else ""


def _verdict(
    pace: dict[str, float], expected: Expectation | None, one_machine: bool, straggler: Straggler | None
) -> Bottleneck:
    speed, left = pace["examples_per_second"], pace["steps"] - pace["step"]
    outside = expected.against(speed) if expected else ""
    cause, why = _bound(pace, outside == "slower", one_machine)
    if straggler:
        cause, why = "straggler-bound", f"{straggler}. {straggler.advice}"
    progress = (
        f"step {pace['step']:,.0f} of {pace['steps']:,.0f}, {speed:,.0f} examples/s, "
        f"about {duration_text(left * pace['step_ms'] / 1000)} of steps left"
    )
    if outside:
        progress += f"; the plan expected {expected}{', and learns from this run' if outside == 'faster' else ''}"
    return Bottleneck(cause, f"{progress}; {why}", outside)


def _bound(pace: dict[str, float], slower: bool, one_machine: bool) -> tuple[str, str]:
    """Return the bottleneck, and the end of a sentence about it. slower: than the plan expected."""
    step = pace["step_ms"]
    waited = 1 - pace["rested_step_ms"] / step
    summed = pace["all_reduce_ms"] / step
    total = sum(value for name, value in pace.items() if name.endswith("_seconds"))
    saved, judged = (pace[f"{name}_seconds"] / max(total, 1e-9) for name in ("save", "eval"))
    if waited > _INPUT:
        return "input-bound", (
            f"it waits for its input {waited:.0%} of each step "
            f"({step:,.1f} ms; {pace['rested_step_ms']:,.1f} after a pause). "
            f"With its input there it would take {pace['examples_per_second'] / (1 - waited):,.0f} examples/s: "
            f"{'' if one_machine else _input_workers_advice(pace)}give it {1 / (1 - waited):.1f} times the cores"
            f"{'' if one_machine else ' (resources.requests.cpu of the pool)'}, or lower data.image_size or "
            "train.augment as much"
        )
    if summed > _ALL_REDUCE:
        return "all-reduce-bound", (
            f"its workers sum gradients {summed:.0%} of each step ({pace['all_reduce_ms']:,.1f} of {step:,.1f} ms). "
            "Raise train.batch_size (with train.accumulation_steps if that does not fit), take fewer workers, or a "
            "pool with a faster network"
        )
    if slower:
        return "compute-bound", (
            "it computes most of each step, so its node gives less than the plan takes it for. "
            "See what else runs there (kubectl top pods), or correct machine and resources of the pool"
        )
    if saved > _SAVE:
        return "checkpoint-bound", (
            f"it waits for its checkpoints {saved:.0%} of the time. "
            "Raise train.checkpoints.every_steps, or take a faster storage"
        )
    if judged > _EVAL:
        return (
            "eval-bound",
            f"it evaluates {judged:.0%} of the time. Lower data.split.eval, or raise train.batch_size",
        )
    return "compute-bound", (
        "it computes most of the time. What is faster is a larger train.batch_size if devices have room, or "
        "another pool: trainyard plan"
    )


def _input_workers_advice(pace: dict[str, float]) -> str:
    """Advise a number of input workers, as the start of a sentence; '' if it cannot be computed."""
    present = int(pace.get("input_workers", 0))
    hosts = present or int(pace.get("workers", 1))
    needed = input_workers_needed(hosts, pace["step_ms"], pace["rested_step_ms"])
    if needed is None:
        return ""
    who = f"{needed} input workers instead of {present}" if present else f"{needed} input workers"
    return f"{who}, each with the cores of one that prepares its batches now (input_workers.count), would feed it, or "
