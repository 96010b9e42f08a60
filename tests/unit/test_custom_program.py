"""A program of the recipe's own: what a recipe may say of it, and what its lines may tell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard import events
from trainyard.contract import keys
from trainyard.contract.provenance import provenance
from trainyard.errors import CommandFailed, ConfigurationError
from trainyard.graph import OUTPUTS
from trainyard.runtime.task import check_code
from trainyard.spec import environment as environments
from trainyard.spec import plain_yaml
from trainyard.spec import recipe as recipes
from trainyard.spec.documents import parse
from trainyard.spec.recipe import Recipe
from trainyard.steps.train.custom_program import program
from trainyard.steps.train.custom_program.program import ProgramRecord
from trainyard.steps.train.loop.checkpoint import best_epoch
from trainyard.steps.train.loop.goodput import GangHistory
from trainyard_control.kubeflow.doctor import examine

RECIPE = """
name: own
data: {format: image_folder, bundled: digits}
train: {command: [python, my_train.py, --layers, '3']}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "my_train.py").write_text("import layers\n")
    (tmp_path / "layers.py").write_text("# Schichten: größer\n")
    (tmp_path / "own.yaml").write_text(RECIPE)
    return str(tmp_path / "own.yaml")


def test_a_recipe_carries_the_files_that_its_command_names_or_imports_and_those_it_lists(recipe: str) -> None:
    (Path(recipe).parent / "words.txt").write_text("a\n")
    files = {"my_train.py": "import layers\n", "layers.py": "# Schichten: größer\n"}
    assert recipes.load(recipe).files == files
    loaded = recipes.load(recipe, ["files=[words.txt]"])
    assert loaded.files == files | {"words.txt": "a\n"}
    # As a pod reads it, far from the files.
    assert parse(plain_yaml.dump(loaded.model_dump(mode="json")), Recipe, name="recipe") == loaded


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.xla=true", "train.xla: is done by Trainyard's own training"),
        ("train.warm_start=champion", "train.warm_start: is done by Trainyard's own training"),
        ("train.augment={shift: 0.1}", "train.augment: is done by Trainyard's own training"),
        ("model.name=cnn_small", "model.name: is of the networks that Trainyard trains"),
        ("model.hidden=[3]", "model.hidden: is of the networks that Trainyard trains"),
        ("files=[layer.py]", "there is no file 'layer.py' beside the recipe"),
        ("files=[../layers.py]", "files"),
        ("train.command=[]", "train.command"),
        ("data=null", "data"),
        ("evaluate.gates=[{metric: acuracy, min: 0.9}]", "no such metric 'acuracy'. Did you mean 'accuracy'?"),
        ("train.command=null", "model.name: is required unless module has a build_model"),
        ("train.image=team trainer", "train.image: is no name of an image. Write registry/name:tag"),
        ("train.image=example/trainer@sha256:12", "train.image: is no name of an image. Write registry/name:tag"),
    ],
)
def test_what_would_have_no_effect_is_refused(recipe: str, override: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match="(?s)" + expected.replace("(", r"\(")):
        recipes.load(recipe, [override])


@pytest.mark.parametrize("arguments", ["--password=hunter2", "--api-token, hunter2hunter2", "--auth-key=hunter2"])
def test_a_secret_among_the_arguments_is_refused_and_not_repeated(recipe: str, arguments: str) -> None:
    with pytest.raises(ConfigurationError, match=r"train\.command: holds what looks like a secret") as refused:
        recipes.load(recipe, [f"train.command=[python, my_train.py, {arguments}]"])
    assert "hunter2" not in str(refused.value).split("train.command: ")[1]
    recipes.load(recipe, ["train.command=[python, my_train.py, --token-file, /run/token, --key=$KEY, --layers, '3']"])


def test_files_without_a_command_are_refused(recipe: str) -> None:
    plain = [
        "train.command=null",
        "model.name=cnn_small",
        "files=[layers.py]",
    ]
    with pytest.raises(ConfigurationError, match=r"files: need module or train.command, and neither is set"):
        recipes.load(recipe, plain)


def test_an_image_without_code_is_refused_and_one_without_a_tag_is_for_doctor_to_tell(recipe: str) -> None:
    plain = ["train.command=null", "model.name=cnn_small", "train.image=example/trainer:1"]
    with pytest.raises(ConfigurationError, match=r"train.image: needs module or train.command"):
        recipes.load(recipe, plain)
    loaded = recipes.load(recipe, ["train.image=example/trainer:latest"])
    look = next(look for look in examine(environments.load("vertex"), loaded) if look.name == "image train")
    assert look.verdict == "bad" and look.sentence.startswith("'example/trainer:latest' has no unique tag")


def test_the_image_is_part_of_the_key_of_train_alone(recipe: str) -> None:
    alone, other = recipes.load(recipe), recipes.load(recipe, ["train.image=example/trainer:1"])
    assert [step for step in OUTPUTS if keys.sections(alone, step) != keys.sections(other, step)] == ["train"]


def test_the_image_is_part_of_what_names_the_outputs_of_steps_that_call_the_module(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def metrics(truth): ...\n")
    (tmp_path / "own.yaml").write_text("name: own\nmodule: own.py\ndata: {format: image_folder, bundled: digits}\n")
    named = ["model.name=cnn_small"]
    plain = recipes.load(str(tmp_path / "own.yaml"), named)
    other = recipes.load(str(tmp_path / "own.yaml"), [*named, "train.image=example/trainer:1"])
    steps = [step for step in OUTPUTS if provenance(plain, step).modules != provenance(other, step).modules]
    assert steps == ["evaluate"], "preprocess calls no function of this module, and train's section names the image"


def test_an_image_with_other_code_of_trainyard_is_refused_with_what_to_build(recipe: str) -> None:
    loaded = recipes.load(recipe, ["train.image=example/trainer:1"])
    with pytest.raises(
        ConfigurationError, match=r"code 000000000000, this image holds .* build train.image again FROM"
    ):
        check_code("train", 64 * "0", loaded)
    with pytest.raises(ConfigurationError, match=r"or name the image of the pipeline's version in the environment"):
        check_code("evaluate", 64 * "0", loaded)


def read(capsys: pytest.CaptureFixture[str], *lines: str, record: str = "") -> tuple[ProgramRecord, list[str]]:
    """Return what is known after `lines`, and what they became."""
    reader = ProgramRecord(GangHistory(), 3, record)
    for line in lines:
        reader.read(f"{line}\n")
    return reader, capsys.readouterr().err.splitlines()


def test_a_damaged_record_of_epochs_is_skipped_with_a_warning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "epochs.json").write_bytes(b'[{"epoch": 1, "st')
    reader, output = read(capsys, epoch(1, 0.5), record=str(tmp_path / "epochs.json"))
    assert [entry.epoch for entry in reader.history] == [1]
    assert "epochs.json: the epochs of earlier starts are not known" in output[0]


def epoch(number: int, loss: float) -> str:
    fields = {"epoch": number, "step": 10 * number, "train_loss": loss, "eval_loss": loss, "metric": 0.5}
    return json.dumps({"event": "epoch", **fields})


def test_lines_about_steps_and_epochs_become_events(capsys: pytest.CaptureFixture[str]) -> None:
    reader, output = read(
        capsys,
        json.dumps({"event": "resumed", "step": 5}),
        json.dumps({"event": "progress", "done": 8, "total": 30, "examples_per_second": 90.0, "mood": "good"}),
        json.dumps({"event": "progress", "done": 10, "total": 30}),
        epoch(1, 0.5),
        epoch(2, 0.25),
        epoch(1, 0.125),
    )
    assert (reader.steps, reader.resumed_from, reader.examples_per_second) == (20, 5, 90.0)
    assert best_epoch(reader.history) == reader.history[0]
    assert [epoch_metrics.eval_loss for epoch_metrics in reader.history] == [0.125, 0.25] and reader.step_seconds > 0
    kinds = [events.parse(line)["event"] for line in output]
    assert kinds == ["resumed", "began", "progress", "progress", "epoch", "epoch", "epoch"]
    assert "mood" not in events.parse(output[2]) and events.parse(output[4])["of"] == 3


def test_epochs_of_an_earlier_start_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = str(tmp_path / "epochs.json")
    read(capsys, epoch(1, 0.5), epoch(2, 0.25), record=record)
    reader, _ = read(capsys, epoch(2, 0.125), epoch(3, 0.25), record=record)
    assert [(epoch_metrics.epoch, epoch_metrics.eval_loss) for epoch_metrics in reader.history] == [
        (1, 0.5),
        (2, 0.125),
        (3, 0.25),
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "progress", "done": "many", "total": 3}',
        '{"event": "progress", "done": -1, "total": 3}',
        '{"event": "progress", "done": 1, "total": 3, "examples_per_second": NaN}',
        '{"event": "epoch", "epoch": 1}',
        '{"event": "epoch", "epoch": 0, "step": 1, "train_loss": 1, "eval_loss": 1, "metric": Infinity}',
        '{"event": "resumed"}',
    ],
)
def test_a_line_that_cannot_be_used_is_said_once_and_left_out(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    reader, output = read(capsys, line, line)
    assert len(output) == 1 and events.parse(output[0])["event"] == "warning"
    assert (reader.steps, reader.history, reader.resumed_from) == (0, [], None)


def test_other_lines_are_text_even_if_they_look_like_events(capsys: pytest.CaptureFixture[str]) -> None:
    _, output = read(capsys, "epoch one", '{"event": "failed", "code": 0, "message": "all is well"}', '{"event": ')
    assert output == ["epoch one", 'program: {"event": "failed", "code": 0, "message": "all is well"}', '{"event":']
    assert not any(events.parse(line) for line in output)


FOLDER = "{name: own, train: {command: [python, -c, pass], result: folder}, evaluate: {gates: [{metric: wer, max: 3}]}}"


def test_a_program_with_a_folder_needs_no_data_and_names_metrics_as_it_likes() -> None:
    recipe = parse(FOLDER, Recipe, name="recipe")
    assert recipe.data.format == "none" and keys.fingerprint(recipe) == "none"
    assert parse(plain_yaml.dump(recipe.model_dump(mode="json")), Recipe, name="recipe") == recipe


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("result: folder", "result: keras", "data: is required and missing. Say what to learn from"),
        ("name: own", "name: own, task: regression", "task: is of the examples in data, and there are none"),
        ("name: own", "name: own, data: {format: none, label: x}", "format none has no data that label could be of"),
        ("name: own", "name: own, module: own.py", "module: is of models that Trainyard judges and exports"),
        ("name: own", "name: own, export: {formats: [saved_model]}", "export.formats: is of models that Trainyard"),
        ("gates:", "worst: 3, gates:", "evaluate.worst: is of models that Trainyard judges"),
        ("max: 3", "max: 3, slice: a=b", "evaluate.gates.0.slice: is of models that Trainyard judges"),
        ("max: 3", "max_difference: 3, against: boosted", "evaluate.gates.0.against: is of models that Trainyard"),
        ("command: [python, -c, pass], ", "", "train.result: needs train.command, which is not set"),
    ],
)
def test_what_a_folder_leaves_without_effect_is_refused(before: str, after: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        parse(FOLDER.replace(before, after), Recipe, name="recipe")


def test_a_line_that_never_ends_takes_no_memory_of_its_length(tmp_path: Path) -> None:
    class Lengths(ProgramRecord):
        lengths: list[int] = []

        def read(self, line: str) -> None:
            self.lengths.append(len(line))

    endless = "import sys\nfor _ in range(40): sys.stdout.write('x' * 100_000)\nsys.exit(3)"
    with pytest.raises(CommandFailed, match=r"ended with exit status 3: x{300}"):
        program.run([sys.executable, "-c", endless], tmp_path, {**os.environ}, Lengths(GangHistory(), 1, "")).check()
    assert sum(Lengths.lengths) == 4_000_000 and max(Lengths.lengths) <= 1 << 20


def test_a_program_starts_before_tensorflow_is_imported() -> None:
    code = (
        "import trainyard.steps.train.custom_program.training, sys\n"
        "print([name for name in ('tensorflow', 'keras', 'sklearn') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "[]\n"
