"""The order of the training batches: a pure function of seed and step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import train_folders

from trainyard.data.examples import ExampleFolder, open_examples
from trainyard.process import memory
from trainyard.spec.recipe import Recipe
from trainyard.steps.train import input_speed
from trainyard.steps.train.input import input as training_input
from trainyard.steps.train.input.input import Input


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ExampleFolder:
    return open_examples(train_folders.digits(tmp_path_factory.mktemp("input") / "examples", limit=120, shards=3))


@pytest.fixture(params=["in memory", "streamed"])
def data(request: pytest.FixtureRequest, folder: ExampleFolder, monkeypatch: pytest.MonkeyPatch) -> Input:
    if request.param == "streamed":
        monkeypatch.setattr(training_input, "MEMORY_BYTES", 0)
    return Input(recipe(), folder, None)


def test_every_example_counts_once_an_epoch_and_the_batches_have_one_shape(data: Input) -> None:
    count = data.folder.document.splits["train"].examples
    assert count % 16 != 0
    batches = list(data.train(0))
    assert len(batches) == 3 * data.steps_per_epoch
    stored = sorted(
        image.astype(np.uint8).tobytes()
        for features, _, _ in data.folder.batches("train", 7)
        for image in features["image"].numpy()
    )
    epochs = [batches[i * data.steps_per_epoch : (i + 1) * data.steps_per_epoch] for i in range(3)]
    orders = []
    for epoch in epochs:
        seen = []
        for features, labels, weights in epoch:
            assert features["image"].shape == (16, 8, 8, 1) and labels.shape == (16,)
            assert features["image"].dtype == "uint8"
            assert float(np.sum(weights)) == pytest.approx(1)
            seen += [
                image.tobytes() for image, weight in zip(features["image"].numpy(), weights, strict=True) if weight
            ]
        assert sorted(seen) == stored
        orders.append(seen)
    assert orders[0] != orders[1] != orders[2]


def test_no_epoch_comes_nearly_in_the_stored_order(folder: ExampleFolder) -> None:
    stored = [
        image.astype(np.uint8).tobytes()
        for features, _, _ in folder.batches("train", 7)
        for image in features["image"].numpy()
    ]
    train = recipe().train.model_copy(update={"epochs": 24})
    for seed in range(3):
        data = Input(recipe().model_copy(update={"seed": seed, "train": train}), folder, None)
        seen = [
            stored.index(image.tobytes())
            for features, _, weights in data.train(0)
            for image, weight in zip(features["image"].numpy(), weights, strict=True)
            if weight
        ]
        for order in np.reshape(seen, (24, -1)):
            # Of a random order, the correlation with its places has a deviation of 1 / sqrt(n).
            assert abs(np.corrcoef(order, np.arange(len(stored)))[0, 1]) < 4 / len(stored) ** 0.5


def test_the_input_alone_is_measured_from_each_source_with_the_recipes_own_changes(
    folder: ExampleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_speed, "_WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(input_speed, "_PART_SECONDS", 0.02)
    rewritten: list[ExampleFolder] = []
    rates = input_speed._measure_rates

    def noted(recipe: Recipe, folder: ExampleFolder, memory_bytes: int) -> list[float]:
        rewritten.append(folder)
        (image,) = [feature for feature in folder.document.features if feature.encoded]
        first = next(iter(Input(recipe, folder, None, memory_bytes=0).train(0)))[0]["image"]
        assert image.pixels == ("raw" in folder.uri) and first.shape == (16, 8, 8, 1)
        return rates(recipe, folder, memory_bytes)

    monkeypatch.setattr(input_speed, "_measure_rates", noted)
    speeds = list(input_speed.speeds(recipe({"shift": 0.1, "flip": True}), folder.uri))
    assert [(speed.source, speed.used) for speed in speeds] == [
        ("PNG shards", False),
        ("raw shards", False),
        ("memory", True),
    ]
    assert all(0 < speed.low <= speed.examples_per_second <= speed.high for speed in speeds)
    kept, raw, _ = (example_folder.document.splits["train"].examples for example_folder in rewritten)
    assert kept == raw == folder.document.splits["train"].examples // 16 * 16  # whole batches, so none is padded


def test_pixels_are_the_same_from_either_kind_of_shards(folder: ExampleFolder, tmp_path: Path) -> None:
    (feature,) = [feature for feature in folder.document.features if feature.encoded]
    records = input_speed._records(folder, folder.document.splits["train"].files[:1], 40, 16)
    pixels = input_speed._rewrite_images(folder, records, feature)
    raw = input_speed._write_split(f"{tmp_path}/raw", folder.document, pixels, feature, pixels=True)
    same = input_speed._write_split(f"{tmp_path}/png", folder.document, records, feature, pixels=False)
    for (one, label), (other, same_label) in zip(
        raw.pixel_batches("train", 50), same.pixel_batches("train", 50), strict=True
    ):
        assert (one["image"].numpy() == other["image"].numpy()).all() and (label == same_label).numpy().all()


@pytest.mark.parametrize("start", [1, 6, 7, 15])
def test_a_run_that_starts_late_sees_what_the_whole_run_saw(data: Input, start: int) -> None:
    augmented = Input(recipe({"shift": 0.1, "contrast": 0.1}), data.folder, None)
    whole = list(augmented.train(0))[start:]
    late = list(augmented.train(start))
    assert len(whole) == len(late)
    for (images, labels, weights), (again, labels_again, weights_again) in zip(whole, late, strict=True):
        np.testing.assert_array_equal(images["image"], again["image"])
        np.testing.assert_array_equal(labels, labels_again)
        np.testing.assert_array_equal(weights, weights_again)


def test_the_evaluation_holds_each_example_with_weight_one(data: Input) -> None:
    labels, weights = (np.concatenate(part) for part in zip(*((b[1], b[2]) for b in data.evaluation()), strict=True))
    np.testing.assert_array_equal(labels[weights == 1], data.folder.labels("eval"))
    assert set(weights.tolist()) <= {0.0, 1.0}


def test_class_weights_multiply_the_share_of_each_example(folder: ExampleFolder) -> None:
    weights = np.arange(1, 11, dtype=np.float32)
    _, labels, received = next(iter(Input(recipe(), folder, weights).train(0)))
    np.testing.assert_allclose(received, weights[labels.numpy()] / 16, rtol=1e-6)


def recipe(augment: dict[str, float] | None = None) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "t",
            "seed": 5,
            "data": {"format": "image_folder", "bundled": "digits", "channels": 1},
            "model": {"name": "cnn_small"},
            "train": {"epochs": 3, "batch_size": 16, "augment": augment or {}},
        }
    )


def test_what_is_prepared_ahead_takes_a_part_of_the_containers_memory(
    folder: ExampleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Input(recipe(), folder, None)
    monkeypatch.setattr(memory, "limit_mib", lambda: 8192)
    assert [split.options().autotune.ram_budget for split in (data.train(0), data.evaluation())] == [2 << 30] * 2
    monkeypatch.setattr(memory, "limit_mib", lambda: None)
    assert data.train(0).options().autotune.ram_budget is None
