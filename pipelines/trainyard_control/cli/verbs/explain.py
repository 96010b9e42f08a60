"""`trainyard explain`: say why a run waits or failed."""

from __future__ import annotations

from typing import Annotated

import typer

from trainyard.errors import ConfigurationError
from trainyard_control.cli.answers import print_answer
from trainyard_control.cli.follow import show_troubled_steps
from trainyard_control.cli.options import LOCAL, EnvironmentName, Output, OutputFormat


def explain(
    run: Annotated[str, typer.Argument(help="Name or id of a run. Default: the newest on this machine.")] = "",
    environment: EnvironmentName = LOCAL,
    output: OutputFormat = Output.TEXT,
) -> None:
    """Explain why a run waits or failed, and what to do."""
    from trainyard.spec import environment as environments

    loaded = environments.load(environment)
    if loaded.target == "local":
        from trainyard_control.local.local_explanation import explain_folder

        sentence, code = explain_folder(loaded.storage, run)
        answer = {"reason": sentence, "exit_code": int(code)}
        print_answer(output, answer, lambda: typer.echo(f"{sentence.rstrip('.')}."))
        return
    if not run:
        raise ConfigurationError("name a run, or its id. `trainyard runs list` shows them.")
    from trainyard_control.kubeflow.runs import KubeflowRuns

    runs = KubeflowRuns(loaded)
    view = runs.view(runs.find(run))

    def show() -> None:
        typer.echo(f"{view.reason.rstrip('.')}.")
        show_troubled_steps(view)

    print_answer(output, view.document(), show)
