"""The process that `scaling` measures: trains on its core, as many steps as it is told on standard input."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Answer each line `<command> <count>` with a line of JSON."""
    index, workers, model, batch, parts, statistics, examples, folder = sys.argv[1:]
    os.sched_setaffinity(0, {int(index) % 2})

    from trainyard.steps.train import session
    from trainyard.steps.train.engines import engine

    # isort: split
    from trainyard.data.examples import open_examples
    from trainyard.spec.recipe import Recipe
    from trainyard.steps.train.loop.checkpoint import CheckpointFolder, CheckpointWriter, Progress

    trains = engine.create_engine()
    trains.join()
    recipe = Recipe.model_validate(
        {
            "name": "scaling",
            "data": {"format": "image_folder", "path": "/nowhere"},
            "model": {"name": model},
            "train": {
                "epochs": 100_000,
                "batch_size": int(batch) * int(parts) * int(workers),
                "accumulation_steps": int(parts),
                "batch_statistics": statistics,
                "optimizer": {"name": "sgd", "learning_rate": 1e-4},
            },
        }
    )
    data, steps = session.prepare(recipe, open_examples(examples), trains, (0.0, 1.0), "float32")
    batches, worker_values = iter(steps.distributed(data.train(0))), (0.0, 0.0, 0.0)
    writer = CheckpointWriter(CheckpointFolder(f"{folder}/checkpoints-{index}-{workers}", "", keep=2))
    steps.train(batches, 2, worker_values)
    steps.not_finite()
    if int(workers) > 1:
        steps.all_reduce(1)
    print("{}", flush=True)
    saved = 0
    for line in sys.stdin:
        command, count = line.split()
        start = time.perf_counter()
        answer: dict[str, Any] = {}
        if command == "save":
            saved += 1
            steps.not_finite()
            arrays = steps.arrays()
            blocked = time.perf_counter() - start
            writer.save(Progress(identity="", step=saved, history=[]), arrays, blocked)
            answer["blocked_ms"] = 1000 * blocked
        if command in ("step", "save"):
            steps.train(batches, int(count), worker_values)
            writer.wait()
        elif command == "all_reduce":
            steps.all_reduce(int(count))
        else:
            answer["gradient_bytes"] = steps.gradient_bytes
            answer["state_bytes"] = sum(each.nbytes for each in steps.arrays().values())
        answer["ms"] = 1000 * (time.perf_counter() - start) / int(count)
        answer["apart_seconds"] = writer.interval_seconds
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
