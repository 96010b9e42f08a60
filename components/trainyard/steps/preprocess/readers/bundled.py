"""Writes out the real data sets that scikit-learn carries, so that they take the way that a user's own data take."""

from __future__ import annotations

import csv
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from PIL import Image


def write_digits(folder: Path) -> None:
    """Write 1,797 handwritten digits as 8 x 8 gray PNG files, one folder a class.

    The source's 17 gray levels 0..16 become 0..255. Source: scikit-learn `load_digits`, from the UCI test set of
    Optical Recognition of Handwritten Digits.
    """
    # The file itself: to import scikit-learn takes 0.6 s of CPU, four times as long as all else here.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    images = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    for index, (image, label) in enumerate(zip(images, table[:, -1].astype(int), strict=True)):
        path = folder / str(label) / f"{index:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def write_breast_cancer(folder: Path) -> None:
    """Write 569 biopsies as a CSV file: 30 measurements, named in snake case, and `diagnosis`.

    Source: scikit-learn `load_breast_cancer`, the UCI Breast Cancer Wisconsin (Diagnostic) data.
    """
    from sklearn import datasets

    cancer = datasets.load_breast_cancer()
    names = [name.replace(" ", "_") for name in cancer.feature_names]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "breast_cancer.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow([*names, "diagnosis"])
        for row, label in zip(cancer.data, cancer.target, strict=True):
            writer.writerow([*(repr(float(value)) for value in row), cancer.target_names[label]])
