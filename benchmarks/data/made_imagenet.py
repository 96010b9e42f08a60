"""A made set in the forms that ImageNet comes in: the archives with the development kit, folders, and a TFDS folder.

python -m benchmarks.data.made_imagenet FOLDER [--form archives] [--train 450] [--val 50] [--side 64]

A class is a shape with a texture, of random colors, place, size and noise: one can learn it, and not at once.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

CLASSES = [f"n{number:08}" for number in range(1440764, 1440774)]
_SHAPES = ("ellipse", "rectangle", "triangle", "cross", "ring")
_SEED = 17
FORMS = ("archives", "folders", "tfds")


def image(label: int, number: int, side: int) -> bytes:
    """Return a JPEG of the class `label`; `number` says which."""
    draw = np.random.default_rng((_SEED, label, number))
    back = draw.integers(40, 216, 3)
    front = back + draw.choice((-1, 1)) * draw.integers(60, 120, 3)
    texture = np.indices((side, side)).sum(0) if label < len(_SHAPES) else np.indices((side, side))[0]
    stripes = (texture // max(2, side // 10) % 2)[..., None] * 80
    pixels = np.where(_mask(label % len(_SHAPES), draw, side)[..., None], front + stripes - 40, back)
    noisy = np.clip(pixels + draw.normal(0, 25, (side, side, 3)), 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noisy).save(stream, "JPEG", quality=85)
    return stream.getvalue()


def _mask(shape: int, draw: np.random.Generator, side: int) -> npt.NDArray[np.bool_]:
    image = Image.new("1", (side, side))
    size = draw.uniform(0.45, 0.75) * side
    left, top = draw.uniform(0, side - size, 2)
    box = (left, top, left + size, top + size)
    pen = ImageDraw.Draw(image)
    middle_x, middle_y, bar = left + size / 2, top + size / 2, size / 6
    match _SHAPES[shape]:
        case "ellipse":
            pen.ellipse(box, fill=1)
        case "rectangle":
            pen.rectangle(box, fill=1)
        case "triangle":
            pen.polygon([(middle_x, top), (left, top + size), (left + size, top + size)], fill=1)
        case "cross":
            pen.rectangle((left, middle_y - bar, left + size, middle_y + bar), fill=1)
            pen.rectangle((middle_x - bar, top, middle_x + bar, top + size), fill=1)
        case _:
            pen.ellipse(box, outline=1, width=max(1, round(size / 6)))
    return np.asarray(image)


def write(folder: Path, form: str, train: int, val: int, side: int, classes: int = len(CLASSES)) -> None:
    """Write `train` and `val` images of each class into `folder`, in a form of `FORMS`."""
    folder.mkdir(parents=True, exist_ok=True)
    names = CLASSES[:classes]
    numbers = np.random.default_rng(_SEED).permutation(np.repeat(np.arange(classes), val)).tolist()
    train_images = {
        name: [(f"{name}_{number}.JPEG", image(label, number, side)) for number in range(train)]
        for label, name in enumerate(names)
    }
    val_images = [
        (f"ILSVRC2012_val_{place:08}.JPEG", image(label, train + place, side)) for place, label in enumerate(numbers, 1)
    ]
    if form == "archives":
        _write_archives(folder, train_images, val_images)
        _write_kit(folder, names, numbers)
    elif form == "folders":
        for name, images in train_images.items():
            _write_files(folder / "train" / name, images)
        for label, name in enumerate(names):
            chosen = zip(numbers, val_images, strict=True)
            _write_files(folder / "val" / name, [item for number, item in chosen if number == label])
    else:
        pairs = [(content, label) for label, name in enumerate(names) for _, content in train_images[name]]
        _write_tfds(folder, names, pairs, [(item[1], label) for item, label in zip(val_images, numbers, strict=True)])


def _write_files(folder: Path, images: list[tuple[str, bytes]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in images:
        (folder / name).write_bytes(content)


def archive(images: list[tuple[str, bytes]]) -> bytes:
    """Return a tar archive of `images`, names and contents."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as made:
        _add(made, images)
    return stream.getvalue()


def _add(archive: tarfile.TarFile, files: list[tuple[str, bytes]]) -> None:
    for name, content in files:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))


def _write_archives(
    folder: Path, train_images: dict[str, list[tuple[str, bytes]]], val_images: list[tuple[str, bytes]]
) -> None:
    inner = [(f"{name}.tar", archive(images)) for name, images in train_images.items()]
    (folder / "ILSVRC2012_img_train.tar").write_bytes(archive(inner))
    (folder / "ILSVRC2012_img_val.tar").write_bytes(archive(val_images))


def _write_kit(folder: Path, names: list[str], numbers: list[int]) -> None:
    """Write a development kit, whose numbers of classes are not in the order of their names, as in the real one."""
    from scipy.io import savemat

    kinds: list[tuple[str, Any]] = [("ILSVRC2012_ID", "f8"), *((name, "O") for name in ("WNID", "words", "gloss"))]
    rows = [(len(names) - label, name, f"made class {label}", "a shape", 0) for label, name in enumerate(names)]
    rows.append((len(names) + 1, "n00001740", "all of them", "anything", len(names)))
    synsets = np.array(rows, [*kinds, ("num_children", "f8")])
    meta = io.BytesIO()
    savemat(meta, {"synsets": synsets[:, None]})
    truth = "".join(f"{len(names) - number}\n" for number in numbers).encode()
    data = "ILSVRC2012_devkit_t12/data"
    content = [(f"{data}/ILSVRC2012_validation_ground_truth.txt", truth), (f"{data}/meta.mat", meta.getvalue())]
    with tarfile.open(folder / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as kit:
        _add(kit, content)


def _write_tfds(
    folder: Path, names: list[str], train_images: list[tuple[bytes, int]], val_images: list[tuple[bytes, int]]
) -> None:
    """Write what TensorFlow Datasets prepares, in one shard a split."""
    import tensorflow as tf

    splits = []
    for split, pairs in (("train", train_images), ("validation", val_images)):
        with tf.io.TFRecordWriter(str(folder / f"imagenet2012-{split}.tfrecord-00000-of-00001")) as writer:
            for serialized in _examples(tf, pairs):
                writer.write(serialized)
        splits.append({"name": split, "shardLengths": [str(len(pairs))]})
    kinds = {"image": {"image": {"dtype": "uint8"}}, "label": {"classLabel": {"numClasses": str(len(names))}}}
    (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": kinds}}))
    (folder / "dataset_info.json").write_text(json.dumps({"fileFormat": "tfrecord", "splits": splits}))
    (folder / "label.labels.txt").write_text("".join(f"{name}\n" for name in names))


def _examples(tf: Any, pairs: list[tuple[bytes, int]]) -> Iterator[bytes]:
    for content, label in pairs:
        message = tf.train.Example()
        message.features.feature["image"].bytes_list.value.append(content)
        message.features.feature["label"].int64_list.value.append(label)
        yield message.SerializeToString()


def main() -> None:
    """Write the set that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data.made_imagenet", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--form", choices=FORMS, default="archives")
    parser.add_argument("--train", type=int, default=450, help="images a class")
    parser.add_argument("--val", type=int, default=50, help="images a class")
    parser.add_argument("--side", type=int, default=64, help="pixels")
    options = parser.parse_args()
    write(options.folder, options.form, options.train, options.val, options.side)


if __name__ == "__main__":
    main()
