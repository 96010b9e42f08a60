"""`trainyard run`: the whole recipe on this machine."""

from __future__ import annotations

import json
import secrets
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard_control.cli.options import LOCAL, Day, EnvironmentName, Output, OutputFormat, Overrides, RecipeName, Step


def run(
    recipe: RecipeName = "digits",
    environment: EnvironmentName = LOCAL,
    set_: Overrides = None,
    from_step: Annotated[
        Step | None, typer.Option("--from", help="Do this step and the later ones again, whatever is there.")
    ] = None,
    require_blessed: Annotated[
        bool, typer.Option("--require-blessed", help="Exit with 60 if the gate refuses the model.")
    ] = False,
    day: Day = "",
    output: OutputFormat = Output.TEXT,
) -> None:
    """Preprocess, train, evaluate, export and push a recipe on this machine.

    What an earlier run finished is used again; what it left half done is resumed.
    """
    from trainyard.contract import refusal
    from trainyard.contract.artifacts.evaluate import Evaluation
    from trainyard.errors import ConfigurationError, ExitCode, GateRefused, TrainyardError
    from trainyard.report import summary
    from trainyard.spec import environment as environments
    from trainyard.spec import recipe as recipes
    from trainyard.storage import disk
    from trainyard_control.cli.screen import Screen, show
    from trainyard_control.local.local_run import LocalRun

    loaded_recipe = recipes.load(recipe, set_)
    loaded_environment = environments.load(environment)
    if loaded_environment.target != "local":
        raise ConfigurationError(
            f"--environment {environment}: its target is {loaded_environment.target}. "
            "`run` works on this machine; use `compile` for a cluster."
        )
    screen = Screen()
    run_id = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    local_run = LocalRun(loaded_recipe, loaded_environment, run_id, from_step.value if from_step else None, screen, day)
    failure: str | None = "was ended without a word"
    code: int = ExitCode.BUG
    try:
        with screen, disk.os_errors(Path(local_run.root), "used"):
            local_run.execute()
        failure, code = None, ExitCode.DONE
    except TrainyardError as error:
        failure, code = str(error), error.exit_code
        raise
    except KeyboardInterrupt:
        failure, code = "Interrupted. Run the same command again: it goes on where it stopped.", ExitCode.INTERRUPTED
        print(f"✗ {failure}", file=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except Exception as error:
        failure = f"{type(error).__name__}: {error}. This is a fault of Trainyard"
        raise
    finally:
        ended: dict[str, Any] = {
            "startup_seconds": local_run.startup_seconds,
            "failure": failure,
            "exit_code": int(code),
        }
        ended["unfinished"] = local_run.unfinished
        record, _ = summary.write(local_run.root, loaded_recipe, run_id, local_run.folders, local_run.seconds, ended)
    if output is Output.JSON:
        print(json.dumps(record))
    else:
        show(record, loaded_recipe, Evaluation.read(local_run.folders["evaluate"]).intervals)
    if require_blessed and (refused := refusal.of_record(record)):
        raise GateRefused(f"{loaded_recipe.name}: {refusal.SENTENCE} ({refused}).")
