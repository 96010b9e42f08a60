"""How many examples a plan counts in a source that was never prepared."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.data import made_imagenet

from trainyard.errors import ConfigurationError
from trainyard.spec import recipe as recipes
from trainyard_control.planning import data


def test_the_files_of_a_folder_are_counted(tmp_path: Path) -> None:
    for label, count in (("cat", 6), ("dog", 4)):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(count):
            (tmp_path / "images" / label / f"{number}.{'TIF' if number % 2 else 'png'}").touch()
    recipe = tmp_path / "pets.yaml"
    recipe.write_text(
        "name: pets\ndata: {format: image_folder, path: images, image_size: [64, 64]}\nmodel: {name: cnn_small}\n"
    )
    summary = data.find(recipes.load(str(recipe)), None, None)
    assert (summary.train, summary.eval, summary.classes, summary.origin) == (8, 1, 2, "files counted")
    (tmp_path / "images" / "cat" / "indoors").mkdir()
    (tmp_path / "images" / "cat" / "indoors" / "7.png").touch()
    (tmp_path / "images" / "of no class.png").touch()
    assert data.find(recipes.load(str(recipe)), None, None).classes == 2


@pytest.mark.parametrize(("path", "rows"), [("visits", 2000), ("visits/*.csv", 2000), ("visits/b.csv", 1000)])
def test_the_rows_of_a_folder_are_counted_and_a_fraction_of_them_trains(tmp_path: Path, path: str, rows: int) -> None:
    (tmp_path / "visits").mkdir()
    for name, end in (("a", "\n"), ("b", "")):
        lines = ["age,label", *(f"{row},{row % 2}" for row in range(1000))]
        (tmp_path / "visits" / f"{name}.csv").write_text("\n".join(lines) + end)
    recipe = tmp_path / "visits.yaml"
    recipe.write_text(
        f"name: visits\ndata: {{format: csv, path: '{path}', features: {{age: {{type: numeric}}}}}}\n"
        "model: {name: mlp}\n"
    )
    for fraction in (1, 0.25):
        part = recipes.load(str(recipe), [f"data.fraction={fraction}"])
        found = data.find(part, None, None)
        assert (found.train, found.eval) == (0.8 * fraction * rows, 0.1 * rows)
        assert data.find(part, None, 400).eval == pytest.approx(50 / fraction)
    (tmp_path / "visits" / "b.csv").rename(tmp_path / "visits" / "b.csv.gz")
    with pytest.raises(ConfigurationError, match="Give --examples N"):
        data.find(recipes.load(str(recipe), ["data.path=visits"]), None, None)
    assert data.find(recipes.load(str(recipe), ["data.path=visits", "data.fraction=0.5"]), None, 400).eval == 100


def test_the_images_in_archives_are_counted_by_their_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_imagenet.write(tmp_path / "images", "archives", train=20, val=2, side=16, classes=4)
    recipe = tmp_path / "pets.yaml"
    recipe.write_text(
        "name: pets\nmodel: {name: cnn_small}\n"
        "data: {format: image_folder, path: images, image_size: [16, 16], split: {by: folder, eval: 0.1}}\n"
    )
    whole = data.find(recipes.load(str(recipe)), None, None)
    assert (whole.train, whole.classes, whole.origin) == (72, 4, "members of archives counted")
    monkeypatch.setattr(data, "_HEADERS", 16)
    few = data.find(recipes.load(str(recipe)), None, None)
    assert few.classes == 4 and few.origin == "estimated from archives" and 65 < few.train < 120
    one = recipes.load(str(recipe), ["data.path=images/ILSVRC2012_img_train.tar", "data.split={by: content}"])
    assert data.find(one, None, None).classes == 4
