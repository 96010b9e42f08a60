"""`trainyard run`: the whole recipe on this machine."""

from __future__ import annotations

import json
import secrets
import sys
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from yardmaster.local_run import LocalRun


class Step(StrEnum):
    """The steps in their order."""

    PREPROCESS = "preprocess"
    TRAIN = "train"
    EVALUATE = "evaluate"
    EXPORT = "export"
    PUSH = "push"


class Output(StrEnum):
    """How the answer is written to stdout."""

    TEXT = "text"
    JSON = "json"


def run(
    recipe: Annotated[str, typer.Argument(help="Name of a bundled recipe, or a YAML file.")] = "digits",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one value, such as train.epochs=3.")
    ] = None,
    environment: Annotated[
        str,
        typer.Option("--environment", "-e", help="Name of an environment, or a YAML file; its target must be local."),
    ] = "local",
    from_step: Annotated[
        Step | None, typer.Option("--from", help="Do this step and the later ones again, whatever is there.")
    ] = None,
    require_blessed: Annotated[
        bool, typer.Option("--require-blessed", help="Exit with 60 where the gate refuses the model.")
    ] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="text, or one JSON object on stdout.")] = Output.TEXT,
) -> None:
    """Preprocess, train, evaluate, export and push a recipe on this machine.

    What an earlier run finished is used again; what it left half done is resumed.
    """
    from trainyard.core import environment as environments
    from trainyard.core import recipe as recipes
    from trainyard.core.artifacts import Evaluation
    from trainyard.core.errors import ConfigurationError, ExitCode, GateRefused, TrainyardError
    from yardmaster.cli.screen import Screen, show
    from yardmaster.local_run import LocalRun

    loaded = recipes.load(recipe, set_)
    place = environments.load(environment)
    if place.target != "local":
        raise ConfigurationError(
            f"--environment {environment}: its target is {place.target}. "
            "`run` works on this machine; use `compile` for a cluster."
        )
    screen = Screen()
    run_id = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    going = LocalRun(loaded, place, run_id, from_step.value if from_step else None, screen)
    failure: str | None = None
    try:
        with screen:
            going.execute()
    except TrainyardError as error:
        failure = str(error)
        raise
    except KeyboardInterrupt:
        failure = "Interrupted. Run the same command again: it goes on where it stopped."
        print(f"✗ {failure}", file=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    finally:
        if going.folders:
            record = _write_record(going, failure)
    if output is Output.JSON:
        print(json.dumps(record))
    else:
        show(record, loaded, Evaluation.read(going.folders["evaluate"]).intervals)
    if require_blessed and record["gate"]["verdict"] != "blessed":
        failed = [threshold for threshold in record["gate"]["thresholds"] if not threshold["passed"]]
        raise GateRefused("; ".join(f"{t['name']}: {t['note'] or t['value']}" for t in failed) + ". Not pushed.")


def _write_record(run: LocalRun, failure: str | None) -> dict[str, Any]:
    from trainyard.core import report, storage
    from trainyard.core.summary import summarize

    path = run.folder / "report.html"
    page = report.render(f"{run.recipe.name} · {run.run_id}", run.recipe, run.folders, run.seconds, failure=failure)
    storage.write_text(str(path), page)
    record = summarize(run.recipe.name, run.run_id, run.folders, run.seconds, str(path))
    extra = {"startup_seconds": run.startup_seconds, "failure": failure}
    storage.write_text(str(run.folder / "run.json"), json.dumps(record | extra, indent=1))
    return record
