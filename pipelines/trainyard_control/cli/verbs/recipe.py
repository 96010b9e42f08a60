"""`trainyard recipe`: write and check recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trainyard.errors import ConfigurationError
from trainyard_control.cli.options import Label, Overrides, RecipeName, say, write_file

app = typer.Typer(no_args_is_help=True, help="Write and check recipes.")

_TEMPLATE = """\
# A recipe says what to train; where is the environment's matter.
{validate}     checks it
{run}                 trains, judges, exports and pushes it on this machine
# All keys: trainyard recipe schema
name: {name}
description: {kind}
"""

_IMAGES = """\
task: classification
data:
  format: image_folder        # one folder of images a class
  path: data                  # beside this file, or gs://bucket/folder
  image_size: [96, 96]
model:
  name: cnn_small             # or mobilenet_v3_small, efficientnet_v2_b0, convnext_tiny …
train:
  epochs: 20
  batch_size: 64
  augment: {flip: true, shift: 0.1}
evaluate:
  gates:
    - {metric: accuracy, min: 0.9}
    - {metric: accuracy, min_difference: -0.01}    # against the model last pushed
"""

_TABLE = """\
task: classification          # or regression
data:
  format: csv                 # with a header line; .csv.gz too
  path: data.csv              # beside this file, or gs://bucket/data-*.csv
  label: label
  features:
    age: {type: numeric}
    city: {type: category}
    joined: {type: date}
model:
  name: mlp                   # or wide_deep
train:
  epochs: 20
  batch_size: 64
evaluate:
  slices: [city]
  gates:
    - {metric: accuracy, min: 0.8}
"""


@app.command("new")
def new(
    file: Annotated[Path, typer.Argument(help="YAML file to write.")],
    table: Annotated[bool, typer.Option("--table", help="Write an example for a CSV file instead of images.")] = False,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="SOURCE", help="Draft the recipe from data: a table, or folders of images."),
    ] = None,
    label: Label = None,
) -> None:
    """Write an example recipe, or draft one from data."""
    from trainyard import escape, uris
    from trainyard.spec import plain_yaml
    from trainyard_control.api import arguments

    if fault := uris.path_error(str(file)) or ("" if file.suffix in (".yaml", ".yml") else "does not end in .yaml"):
        raise ConfigurationError(f"{uris.without_secrets(str(file))!r}: {fault}. Name a YAML file to write.")
    if source is None and label is not None:
        raise ConfigurationError("--label: needs --from. Give --from the data, or leave --label out.")
    if source is not None:
        text = _draft(file, source, label, table)
    else:
        kind = "Columns of a CSV file" if table else "Images, one folder a class"
        commands = {
            verb.split()[-1]: plain_yaml.comment(f"trainyard {verb} {escape.shell(str(file))}", indent=3)
            for verb in ("recipe validate", "run")
        }
        name = arguments.recipe_name(file.stem)
        text = _TEMPLATE.format(**commands, name=name, kind=kind) + (_TABLE if table else _IMAGES)
    write_file(text, file, mode="x")


def _draft(file: Path, source: str, label: str | None, table: bool) -> str:
    """Draft the recipe for `source`, to be saved as `file`, and print the guesses."""
    from trainyard_control.api import arguments

    if table:
        raise ConfigurationError("--table: not used with --from. Leave one of them out.")
    if file.exists():
        raise ConfigurationError(f"{file}: already exists. Name another file.")
    text, guesses = arguments.draft(source, file, label)
    for guess in guesses:
        say(f"  {guess}", err=True)
    return text


@app.command("validate")
def validate(
    recipe: RecipeName,
    set_: Overrides = None,
    data: Annotated[bool, typer.Option("--data", help="Also check the header and the first rows of the data.")] = False,
) -> None:
    """Check a recipe and print it with all defaults."""
    from trainyard.spec import plain_yaml
    from trainyard.spec import recipe as recipes

    loaded = recipes.load(recipe, set_)
    if data:
        from trainyard.quality.source import require_libraries

        require_libraries()
        from trainyard.quality.recipe_check import check_first

        say(f"✓ {check_first(loaded)} fit it", err=True)
    typer.echo(plain_yaml.dump(loaded.model_dump(mode="json"), allow_unicode=True), nl=False)
    say(f"✓ {recipe} is a valid recipe", err=True)


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from trainyard.spec.recipe import Recipe

    typer.echo(json.dumps(Recipe.model_json_schema(), indent=2))
