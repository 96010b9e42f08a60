"""Sources for the tests of preprocess: a folder of images of every kind, and a CSV file with columns of every type."""

import csv
import gzip
import io
import random
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

HOSTILE = '<img onerror="alert(1)">&cat'
BAD_IMAGES = {
    "dog/cut.jpg": "truncated_image",
    "dog/cut.png": "truncated_image",
    "dog/empty.png": "zero_bytes",
    "dog/page.jpg": "not_an_image",
    "dog/bomb.png": "too_many_pixels",
    "readme.png": "missing_label",
}


def preprocess(recipe: Recipe, output: Path) -> str:
    from trainyard.steps.preprocess.run import run

    with storage.stage(str(output), "trainyard.preprocess") as folder:
        run(recipe, folder)
    return str(output)


def write_images(folder: Path) -> None:
    """Write 60 images a class in every format that is taken, and one bad one of each kind (`BAD_IMAGES`)."""
    draw = np.random.default_rng(3)
    for name, level in ((HOSTILE, 60), ("dog", 180)):
        (folder / name).mkdir(parents=True)
        for index in range(60):
            pixels = np.clip(draw.normal(level, 30, (10, 14, 3)), 0, 255).astype(np.uint8)
            _save(Image.fromarray(pixels), folder / name, index)
    good = (folder / "dog" / "000.png").read_bytes()
    jpeg = (folder / "dog" / "001.jpg").read_bytes()
    bad = {
        "dog/cut.jpg": jpeg[: len(jpeg) // 2],
        "dog/cut.png": good[: len(good) // 2],
        "dog/empty.png": b"",
        "dog/page.jpg": b"<html>404</html>",
        "dog/bomb.png": _bomb(),
        "readme.png": good,
    }
    for path, content in bad.items():
        (folder / path).write_bytes(content)
    for copy in ("dog/copy-1.png", "dog/copy-2.png", f"{HOSTILE}/as-cat.png"):
        (folder / copy).write_bytes(good)


CLASSES = sorted(["dog", HOSTILE])


def write_rows(path: Path, rows: int) -> list[dict[str, str]]:
    """Write a CSV file, gzipped where its name says so, and return its rows as they stand in it."""
    draw = random.Random(5)
    table = [_row(draw, number) for number in range(rows)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]))
    writer.writeheader()
    writer.writerows(table)
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return table


def _row(draw: random.Random, number: int) -> dict[str, str]:
    income = draw.lognormvariate(20, 1)
    color = draw.choices(["red", "green", "blue", "", f"rare {number}"], [50, 30, 15, 4, 1])[0]
    day = f"{draw.randint(1890, 2090):04}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
    return {
        "id": str(number),
        "tiny": "" if draw.random() < 0.1 else repr(draw.gauss(1e-6, 1e-7)),
        "income": "NA" if draw.random() < 0.1 else repr(income),
        "age": "" if draw.random() < 0.1 else str(draw.randint(1, 99)),
        "visits": str(draw.randint(0, 1000)),
        "constant": "7",
        "flag": "" if draw.random() < 0.2 else draw.choice("01"),
        "color, or none": color,
        "since": "" if draw.random() < 0.1 else day + draw.choice(["", "T12:30:00", "T00:05", " 23:59:59.5"]),
        "note": " ".join(
            draw.choices(["Good", "bad,", "très", "price!", "LATE", "42", "the", "the"], k=draw.randint(0, 5))
        ),
        "bought": draw.choice(["yes", "no"]),
    }


def _save(image: Image.Image, folder: Path, index: int) -> None:
    kind = ("png", "jpg", "gif", "bmp", "webp", "cmyk", "gray", "palette", "turned")[index % 9]
    name = folder / f"{index:03}"
    if kind == "cmyk":
        image.convert("CMYK").save(f"{name}.jpg")
    elif kind in ("gray", "palette"):
        image.convert("L" if kind == "gray" else "P").save(f"{name}.png")
    elif kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = 3
        image.save(f"{name}.jpg", exif=exif)
    else:
        image.save(f"{name}.{kind}")


def _bomb() -> bytes:
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(100_000))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
