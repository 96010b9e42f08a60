"""The scripts of the demo page in headless Chromium: the same features as preprocess.py, of rows and of images."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Page, chromium, needs_chromium
from PIL import Image
from test_data_images import ON_DEVICE, SHAPE, TURNED, drawn

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))
from test_values import NAMES, WRITINGS

from trainyard.spec.formula import as_lists, parse
from trainyard.steps.export import demo
from trainyard.steps.export.on_device.columns import Preprocessing
from trainyard.steps.export.on_device.images import image_input
from trainyard.values.zones import time_zone

pytestmark = needs_chromium

CELLS = [text for _, writings in WRITINGS for text in writings] + NAMES
CELLS += ["", "?", "nan", "N/A", "1e39", "-1e-46", "1600-02-29 24:00", "0001-01-01", "2023-02-31", "1883-11-18T17:00Z"]
CELLS += [
    "2024-02-29",
    "2024-03-01 noon",
    "2024-03-01T23:59",
    "0000-01-01",
    "NaT",
    "2024-02-30T00:00Z",
    "2024-03-01 9:05",
]
CELLS += ["2024-03-10T07:00Z", "2024-11-03 05:59:59.5Z", "2999-07-01T12:00+05:30", "0001-01-01T00:00+14:00"]
CELLS += [
    "Ünïted ΣΑΣ, naïve cafe\u0301",
    "東京タワー 2024",
    "สวัสดี ครับ",
    "मैं हिन्दी",
    "a\u2028b",
    "😀 emoji\ufe0f",
    "İstanbul",
]
CELLS += [
    "rock;pop; rock ;",
    "x" * 20,
    "ö" * 20,
    "z" * 65,
    "word " * 30,
    "1;2.0;TRUE",
    "\ufeffa",
    "a\u200db",
    "e" * 128,
]
FORMULAS = [
    *("n + n * 2 - abs(m)", "n / m", "log(n)", "-n / m", "0 < n <= m", "not n > 0 or m == 3", "n > 1 or missing(m)"),
    *(
        "bin(m, 0.1)",
        "n == 2.1 or m < 0.3",
        "c in ['ride', 'größe', '3'] and not missing(n)",
        "c == t",
        "missing(n / m)",
        "bin(n, 0.7)",
    ),
    *("bin(n * 1e30, 0.001)", "join(c, t)", "join(c, bin(m, 2), n > m, 'x')"),
]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as page:
        yield page


def open_scripts(page: Page, kind: str, content: dict[str, Any], folder: Path) -> None:
    text = json.dumps(content).replace("<", "\\u003c")
    script = demo.scripts("page", kind) + "\nglobalThis.features = features;"
    html = f'<meta charset="utf-8"><script type="application/json" id="page">{text}</script>'
    (folder / "page.html").write_text(f'{html}<script type="module">{script}</script>', encoding="utf-8")
    page.open(folder / "page.html")


def column(name: str, dtype: str = "string", learned: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "column": settings, "learned": learned}


def test_a_row_becomes_the_features_that_preprocess_py_makes(page: Page, tmp_path: Path) -> None:
    unknown = {"vocabulary": "words", "missing": "[missing]", "unknown": {"buckets": 1 << 30, "first_id": 9}}
    scaled = {"imputed": 7.5, "mean": 2.1, "standard_deviation": 4.3}
    text = {"words": 12, "ngrams": 2, "separator": None}
    kinds = [("number", "float32"), ("text", "string"), ("truth", "string")]
    derived = [("numeric", scaled), ("category", unknown), ("category", unknown)]
    content = {
        "raw_features": [
            column("n", "float32", scaled | {"log": True}, type="numeric"),
            column("m", "float32", {"imputed": 0.5, "boundaries": [-1.0, 0.0, 3.0]}, type="numeric"),
            column("c", learned=unknown, type="category"),
            column("t", learned=unknown, type="text", **text),
            column("l", learned=unknown, type="text", **text | {"ngrams": 1, "separator": ";"}),
            column("d", learned=scaled, type="date", hour=True),
            column("constructor", learned=unknown, type="category"),  # each object of JavaScript has one
        ],
        "computed_features": [],
        "vocabularies": ["words"],
        "inputs": [],
        "files": {},
        "label_separator": None,
        "thresholds": {},
        "time_zone": "America/New_York",
    }
    for number, formula in enumerate(FORMULAS):
        tree = parse(formula)
        (learned,) = [each for (kind, _), each in zip(kinds, derived, strict=True) if kind == tree.kind]
        (dtype,) = [dtype for kind, dtype in kinds if kind == tree.kind]
        made = column(f"f{number}", dtype, learned[1], type=learned[0]) | {"tree": as_lists(tree)}
        content["computed_features"].append(made)
    (tmp_path / "vocabularies").mkdir()
    (tmp_path / "vocabularies" / "words").write_text("3\ntrue\ncafé\n[missing]\n東\nrock\n", encoding="utf-8")
    (tmp_path / "preprocessing.json").write_text(json.dumps(content))
    on_device = Preprocessing(tmp_path)
    tables = demo.tables(content, time_zone("America/New_York"), tmp_path)
    open_scripts(page, "columns", {"preprocessing": content, **tables}, tmp_path)

    draw = np.random.default_rng(2)
    letters = [*"0123456789.eE+-:TZ ;\n\t\x1c\u3000é\u0301你ก\u0e31Σσﬁ&'_", "\U0001d7d8", "true", "FALSE"]
    cells = CELLS + ["".join(draw.choice(letters, draw.integers(1, 24))) for _ in range(1000)]
    numbers = [0.0, -1.5, 3.0, 1e30, 1e-8, None, "2.5", " TRUE "]
    rows = [
        dict(zip("nmctl", (numbers[place % 8], numbers[place * 3 % 7], *[cell] * 3), strict=True))
        for place, cell in enumerate(cells)
    ]
    rows += [{name: cell} for cell in cells for name in "nd"] + [
        {"l": ["a ", 3.0, True]},
        {"c": ["a"]},
        {"c": {"b64": "YQ=="}},
        {"l": [["a"]]},
        {"l": ["a", "\u037e"]},
        {"n": [1]},
        {"n": True, "c": 1e22, "t": -0.0},
    ]
    absent = {column["name"]: "1" for column in content["raw_features"][1:]}
    rows = [*(dict.fromkeys(["n", *absent]) | row for row in rows), absent]
    script = "({rows}).map((row) => { try { return features(row); } catch (error) { return error.message; } })"
    answers = page.run(script.replace("{rows}", json.dumps(rows)))
    refused = 0
    for row, answer in zip(rows, answers, strict=True):
        try:
            expected = on_device._values(row)
        except ValueError as error:
            assert isinstance(answer, str) and answer.startswith(str(error).partition(" is expected")[0]), row
            assert row is not absent or answer == str(error) == (
                "a row has no column 'n'; give each column, null where its value is missing"
            )
            refused += 1
            continue
        assert answer.keys() == expected.keys()
        for name, value in expected.items():
            if isinstance(value, float | np.floating):
                assert answer[name] == pytest.approx(float(value), rel=1e-12), (row, name)
            else:
                assert answer[name] == value, (row, name)
    assert len(cells) < refused < 2 * len(cells)
    assert page.complaints == []


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_file_becomes_nearly_the_pixels_that_preprocess_py_makes(
    page: Page, tmp_path: Path, channels: int
) -> None:
    content = {"image": SHAPE.model_dump() | {"channels": channels}, "inputs": [{"feature": "image"}]}
    open_scripts(page, "images", {"preprocessing": content}, tmp_path)
    images = {name: encoded for name, encoded in ON_DEVICE.items() if "16 bits" not in name}
    images |= {"JPEG, turned": TURNED, "a photo": photo(), "BMP": drawn("RGB", "BMP"), "GIF": drawn("P", "GIF")}
    images["WebP"] = drawn("RGB", "WEBP", lossless=True)
    furthest, typical = {}, {}
    for name, encoded in images.items():
        script = f"fetch('data:;base64,{base64.b64encode(encoded).decode()}').then((answer) => answer.blob())"
        script += ".then(features).then(({ image }) => [...image])"
        made = np.array(page.run(script)).reshape(SHAPE.height, SHAPE.width, channels)
        difference = np.abs(made - image_input(encoded, content["image"]))
        furthest[name], typical[name] = difference.max(), difference.mean()
    for name, value in furthest.items():
        print(channels, name, f"{value:.3g}", f"{typical[name]:.3g}")
    for name, value in furthest.items():
        if "JPEG" in name or name == "a photo":
            assert value <= (4 if channels == 3 else 10) and typical[name] <= 3, name
        else:
            is_transparent = name in ("PNG, RGBA", "PNG, palette")
            assert value <= (1 if is_transparent and channels == 1 else 1e-4), name


def photo() -> bytes:
    """A large image of smooth shapes, as a camera takes."""
    y, x = np.mgrid[:480, :640]
    waves = [np.sin(x / 30 + 2 * channel) * np.cos(y / 40) + np.sin(x * y / 9000) for channel in range(3)]
    pixels = np.clip(127 + 60 * np.stack(waves, axis=-1), 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("encoded", "sentence"),
    [
        (ON_DEVICE["PNG, 16 bits"], "the image has 16 bits a channel, which browsers cut. Save it with 8 bits."),
        (drawn("CMYK", "JPEG"), "the image is in CMYK colors. Save it as RGB."),
        (drawn("RGB", "TIFF"), "the file is no JPEG, PNG, WebP, GIF or BMP image. Save it as JPEG or PNG."),
        (b"", "the file is no JPEG, PNG, WebP, GIF or BMP image. Save it as JPEG or PNG."),
        (ON_DEVICE["PNG, RGB"][:60], "the browser cannot read this image. Save it as JPEG or PNG again."),
    ],
    ids=["16 bits", "CMYK", "TIFF", "empty", "cut"],
)
def test_what_a_browser_would_decode_otherwise_is_refused(
    page: Page, tmp_path: Path, encoded: bytes, sentence: str
) -> None:
    content = {"image": SHAPE.model_dump(), "inputs": [{"feature": "image"}]}
    open_scripts(page, "images", {"preprocessing": content}, tmp_path)
    bytes_ = json.dumps([*encoded])
    script = f"features(new Blob([new Uint8Array({bytes_})])).then(() => '', (error) => error.message)"
    assert page.run(script) == sentence


def test_the_key_of_an_export_changes_with_what_its_page_is_made_of() -> None:
    assert hashlib.sha256(b"".join(path.read_bytes() for path in demo.sources())).hexdigest() == demo.SOURCES_DIGEST
