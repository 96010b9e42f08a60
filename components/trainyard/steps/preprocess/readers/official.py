"""A split that comes with the data: its folders, and the classes of test images that lie in no class folder.

It reads ImageNet as published (archives of training and validation images, and the list of validation classes), as
class folders, or as prepared by TensorFlow Datasets.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace

from trainyard.contract import image_formats
from trainyard.errors import DataError
from trainyard.spec.columns import SplitRows
from trainyard.spec.recipe import Data
from trainyard.steps.preprocess.readers.files import (
    Files,
    Official,
    Part,
    image_stem,
    names_in,
    open_file,
    read_text,
)
from trainyard.steps.preprocess.readers.tfds import SHARD
from trainyard.storage import tar
from trainyard.storage.tar import as_folder, is_archive
from trainyard.uris import is_bucket

_LIST, _KAGGLE, _KIT = "val_labels.txt", "LOC_val_solution.csv", "ILSVRC2012_devkit_t12.tar.gz"
_TRUTH, _META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
_MOST_BYTES = 64 << 20  # of a list of classes; chosen: ImageNet's have 2 MB
_SHOWN = 5


def with_official(files: Files, data: Data) -> Files:
    """Return the `files` that belong to a split, each with its split.

    Raises `DataError` if none trains or none judges, if images that judge have no class, or if a class is not on both
    sides, as far as it can be known without reading images.
    """
    official, rest = _splits(files, data)
    bad = tuple(item for item in files.bad if official.split(item.file))
    ignored = {name for name in rest if name not in (_LIST, _KAGGLE, _KIT)}
    files = replace(
        files,
        states={path: state for path, state in files.states.items() if official.split(files.name(path))},
        bad=bad,
        ignored=tuple(sorted({*files.ignored, *ignored})),
        official=official,
    )
    if data.format == "tfds":
        return files
    for source in (_LIST, _KAGGLE, _KIT):
        if source in rest:
            files = replace(files, official=replace(official, labels=_labels(files.root, source), labels_from=source))
            break
    _check(files)
    return files


def _splits(files: Files, data: Data) -> tuple[Official, list[str]]:
    """Return the split of each file, and the names of files in no split."""
    names = [*(files.name(path) for path in files.paths), *(item.file for item in files.bad)]
    called: dict[str, set[str]] = {}
    for name in names:
        part, slash, _ = name.partition("/")
        if data.format == "tfds":
            match = SHARD.search(part)
            split = match[1].lower() if match else None
        else:
            split = image_formats.split_of(as_folder(part)) if slash or is_archive(part) else None
        if split:
            called.setdefault(split, set()).add(part)
    judge = next((name for name in image_formats.EVAL_SPLITS if name in called), None)
    kind = "split" if data.format == "tfds" else "folder or archive"
    if "train" not in called or judge is None:
        missing = "trains (train)" if "train" not in called else f"judges ({', '.join(image_formats.EVAL_SPLITS)})"
        folders = sorted({name.partition("/")[0] for name in names})
        raise DataError(
            f"data.split: by: folder finds no {kind} that {missing} in {files.root}. There are: "
            f"{', '.join(folders[:_SHOWN])}{' …' if len(folders) > _SHOWN else ''}. Name the folder that holds both as "
            "data.path, or split by content."
        )
    is_pair = data.format != "tfds" and all(_has_classes(files, called.get(name, set())) for name in (judge, "test"))
    roles = image_formats.split_roles({"train", judge, "test"} if is_pair else {"train", judge})
    for name in roles:
        if data.format != "tfds" and len(called[name]) > 1:
            raise DataError(
                f"data.split: {' and '.join(sorted(called[name])[:_SHOWN])} in {files.root} both are the split {name}. "
                "Leave one there."
            )
    _require_no_share(roles, called, data)
    parts: dict[str, Part] = {as_folder(part): role for name, role in roles.items() for part in called[name]}
    if "eval" in roles.values():
        parts |= {as_folder(part): "all_train" for part in called["train"]}
    official = Official(parts)
    return official, [name for name in names if not official.split(name)]


def _has_classes(files: Files, parts: set[str]) -> bool:
    """Return True if images of a split lie in class folders; an archive in a bucket is not looked into."""
    for path in files.paths:
        name = files.name(path)
        if name.partition("/")[0] not in parts:
            continue
        if not is_archive(name):
            inner = [name]
        else:
            inner = [] if is_bucket(path) else [f"{as_folder(name)}/{each}" for each in names_in(path)]
        if any(each.count("/") > 1 for each in inner):
            return True
    return False


def _require_no_share(roles: dict[str, image_formats.Role], called: dict[str, set[str]], data: Data) -> None:
    """Raise `DataError` if the recipe asks for a share of train, and a folder is the eval split."""
    folder = next((min(called[name]) for name, role in roles.items() if role == "eval"), "")
    if folder and data.split.eval != (default := SplitRows().eval):
        raise DataError(
            f"data.split: eval: {data.split.eval:g} is a share of train, and the folder {folder} is the eval split, "
            f"because test has classes, too. Leave eval out (it is {default:g} by default)."
        )


def _labels(root: str, name: str) -> dict[str, str]:
    """Return the class by the image's name without its ending, or by its number, as the list `name` says."""
    if name == _KIT:
        return _from_kit(f"{root}/{name}")
    text = read_text(f"{root}/{name}", _MOST_BYTES) or ""
    rows = [re.split(r"[,\s]+", line.strip()) for line in text.splitlines()]
    rows = [row for row in rows[name == _KAGGLE :] if row != [""]]
    if all(len(row) == 1 for row in rows):
        return {str(number): row[0] for number, row in enumerate(rows, 1)}
    for number, row in enumerate(rows, 1):
        if len(row) == 1 or not row[1]:
            raise DataError(
                f"data.path: {root}/{name}: row {number} has no class, {row[0][:40]!r} was found. Write the image's "
                "name and its class in each, or the class alone in all."
            )
    return {image_stem(row[0]): row[1] for row in rows}


def _from_kit(path: str) -> dict[str, str]:
    """Return the classes that ImageNet's development kit has: a number an image, and the name of each number.

    Source: torchvision, datasets/imagenet.py: of a synset in meta.mat the number is first, its name second and how many
    children it has fifth; those without any are classes. Line i of the ground truth is of the i-th image by name.
    """
    import numpy as np
    from scipy.io import loadmat  # a second

    members = dict.fromkeys((_TRUTH, _META), b"")
    with open_file(path) as stream:
        for member in tar.members(stream):
            if (name := member.name.rpartition("/")[2]) in members and not member.reason:
                stream.seek(member.at)
                members[name] = stream.read(min(member.size, _MOST_BYTES))
    if not all(members.values()):
        raise DataError(f"data.path: {path}: lacks {_TRUTH} or {_META}. Download ImageNet's development kit again.")
    try:
        synsets = np.ravel(loadmat(io.BytesIO(members[_META]), squeeze_me=True)["synsets"])
        classes = {int(row[0]): str(row[1]) for row in synsets if not int(row[4])}
        numbers = [int(line) for line in members[_TRUTH].split()]
        return {str(row): classes[number] for row, number in enumerate(numbers, 1)}
    except (ValueError, KeyError, TypeError, IndexError, NotImplementedError) as error:
        raise DataError(
            f"data.path: {path}: {_META} and {_TRUTH} are not what ImageNet's development kit has ({error!r}). "
            f"Download it again, or write {_LIST} yourself."
        ) from error


def _check(files: Files) -> None:
    official = files.official or Official({})
    names: dict[Part, list[str]] = {"train": [], "eval": [], "test": []}
    unseen = set()
    for path in files.paths:
        name = files.name(path)
        split = official.split(name) or "train"
        split = "train" if split == "all_train" else split
        if not is_archive(name):
            names[split].append(name)
        elif is_bucket(path):  # to read its names would take as long as to read all of it
            unseen.add(split)
        else:
            names[split] += [f"{as_folder(name)}/{inner}" for inner in names_in(path)]
    flat = [name for name in names["test"] if official.folder(name) is None]
    judge = next(part for part, split in official.parts.items() if split == "test")
    bad = [item.file for item in files.bad if official.split(item.file) == "test"]
    _check_list(files, judge, flat, "test" in unseen, sum(official.folder(name) is None for name in bad))
    classes = {split: {official.folder(name) for name in names[split]} - {None} for split in names}
    if flat:
        classes["test"] |= set(official.labels.values())
    if unseen or not classes["train"]:
        return
    train = next(part for part, split in official.parts.items() if split in ("train", "all_train"))
    evaluating = next((part for part, split in official.parts.items() if split == "eval"), "")
    pairs = [(judge, train, classes["test"] - classes["train"]), (train, judge, classes["train"] - classes["test"])]
    pairs += [(evaluating, train, classes["eval"] - classes["train"])] if evaluating else []
    for here, other, lacking in pairs:
        alone = sorted(map(str, lacking))
        if alone:
            raise DataError(
                f"data.path: {files.root}: {len(alone)} classes are in {here} and not in {other}, such as "
                f"{', '.join(alone[:_SHOWN])}. Each class must be in both. Add or remove them, or correct the list."
            )


def _check_list(files: Files, judge: str, flat: list[str], unseen: bool, bad: int) -> None:
    official = files.official or Official({})
    root, source = files.root, official.labels_from
    if flat and not source:
        raise DataError(
            f"data.path: {root}: {len(flat):,} images in {judge} lie in no class folder, such as {flat[0]}. Put their "
            f"classes beside {judge}, in {_LIST} (a line for each: its name and its class), {_KAGGLE} or {_KIT}."
        )
    if not flat or not source or unseen:
        return
    if len(official.labels) != len(flat) + bad:
        raise DataError(
            f"data.path: {root}/{source}: has the classes of {len(official.labels):,} images, and {len(flat) + bad:,} "
            f"lie in {judge} without a class folder. Name the list of this very split."
        )
    lacking = [name for name in flat if official.label(name) is None]
    if lacking:
        raise DataError(
            f"data.path: {root}/{source}: has no class for {len(lacking)} of the images in {judge}, such as "
            f"{lacking[0]}. Name the list of this very split."
        )
