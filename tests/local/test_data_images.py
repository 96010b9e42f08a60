"""Images: what is kept as it is, what is re-encoded, what is quarantined; and the one decoder."""

import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
import train_folders
from PIL import Image, ImageOps, UnidentifiedImageError

from trainyard.contract.artifacts.preprocess import ImageShape
from trainyard.data.examples import ExampleFolder, reading
from trainyard.data.images import decode_image, decode_pixels, encode_pixels
from trainyard.errors import DataError
from trainyard.quality.decoding import PixelForm
from trainyard.readers.rows import BadRow
from trainyard.steps.export.on_device.images import image_input
from trainyard.steps.predict.images import checked
from trainyard.steps.preprocess.readers.images import ImageLimits, Store, check_image
from trainyard.steps.preprocess.readers.records import BadRecord

SHAPE = ImageShape(height=12, width=16, channels=3)
SMALL = ImageShape(height=5, width=6, channels=3)
STORES = (Store(), Store("training_size", (5, 6)), Store("raw", (5, 6)))
EXIF = Image.Exif()
EXIF[0x0112] = 6  # the camera was turned


def image(mode="RGB", file_format="PNG", **options) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (12, 16, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, file_format, **options)
    return stream.getvalue()


TURNED = image("RGB", "JPEG", exif=EXIF)


def gray_png(height: int, width: int, data: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def bomb() -> bytes:
    """A PNG whose header says 50,000 x 50,000 pixels: 2.5 GB if decoded."""
    return gray_png(50_000, 50_000, zlib.compress(bytes(100_000)))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "1"])
def test_opaque_png_bytes_are_kept_whatever_the_mode(mode):
    encoded = image(mode)
    assert check_image(encoded, ImageLimits(1000, PixelForm(3))).encoded == encoded


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_bytes_are_kept(mode):
    encoded = image(mode, "JPEG")
    assert check_image(encoded, ImageLimits(1000, PixelForm(1))).encoded == encoded


def test_cmyk_bmp_webp_and_gif_become_png_with_the_same_pixels():
    for mode, file_format in [("CMYK", "JPEG"), ("RGB", "BMP"), ("RGB", "WEBP"), ("P", "GIF"), ("CMYK", "TIFF")]:
        encoded = image(mode, file_format)
        checked = check_image(encoded, ImageLimits(1000, PixelForm(3)))
        assert checked.encoded.startswith(b"\x89PNG"), file_format
        expected = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"), np.float32)
        np.testing.assert_array_equal(decode_image(checked.encoded, SHAPE).numpy(), expected)


def test_sixteen_bits_are_scaled_and_not_cut_off():
    values = np.linspace(0, 65535, 12 * 16).reshape(12, 16).astype(np.uint16)
    for file_format in ("PNG", "TIFF"):
        stream = io.BytesIO()
        Image.fromarray(values).save(stream, file_format)
        checked = check_image(stream.getvalue(), ImageLimits(1000, PixelForm(1)))
        decoded = decode_image(checked.encoded, ImageShape(height=12, width=16, channels=1)).numpy()[..., 0]
        np.testing.assert_allclose(decoded, values / 257, atol=1.01)


def test_an_exif_orientation_is_applied():
    checked = check_image(TURNED, ImageLimits(1000, PixelForm(3)))
    assert (checked.height, checked.width) == (16, 12)
    assert tf.io.decode_png(checked.encoded).shape == (16, 12, 3)


@pytest.mark.parametrize(("file_format", "mode"), [("PNG", "RGB"), ("WEBP", "RGB"), ("TIFF", "RGB"), ("TIFF", "L")])
def test_an_image_of_any_format_is_turned_once(file_format, mode):
    options = {"lossless": True} if file_format == "WEBP" else {}
    encoded, shape = image(mode, file_format, exif=EXIF, **options), ImageShape(height=16, width=12, channels=3)
    expected = np.rot90(np.asarray(Image.open(io.BytesIO(image(mode))).convert("RGB")), -1)
    stored = check_image(encoded, ImageLimits(1000, PixelForm(3)))
    assert (stored.height, stored.width) == (16, 12)
    for form in (stored.encoded, checked("a", encoded, PixelForm(3))[1]):
        np.testing.assert_array_equal(decode_image(form, shape).numpy(), expected)
    np.testing.assert_array_equal(image_input(encoded, shape.model_dump()), expected)


def test_an_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (16, 12), color) for color in ("red", "blue")]
    stream = io.BytesIO()
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
    decoded = decode_image(check_image(stream.getvalue(), ImageLimits(1000, PixelForm(3))).encoded, SHAPE).numpy()
    np.testing.assert_array_equal(decoded[0, 0], [255, 0, 0])


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "zero_bytes"),
        (b"<html>not found</html>", "not_an_image"),
        (b"\x00" * 4096, "not_an_image"),
        (image("RGB", "JPEG")[:-100], "truncated_image"),
        (image("RGB", "PNG")[:200], "truncated_image"),
        (bomb(), "too_many_pixels"),
        (image("RGB", "EPS"), "not_an_image"),
        (image("RGB", "ICO"), "not_an_image"),
    ],
    ids=["empty", "html", "zeros", "cut jpeg", "cut png", "bomb", "a program for Ghostscript", "a size that is hidden"],
)
def test_a_bad_image_is_named(encoded, reason):
    with pytest.raises(BadRecord) as caught:
        check_image(encoded, ImageLimits(1_000_000, PixelForm(3)))
    assert caught.value.reason == reason
    if reason in ("zero_bytes", "not_an_image"):
        with pytest.raises(ValueError, match=rf"^no image: {len(encoded):,} bytes that begin with b"):
            image_input(encoded, SHAPE.model_dump())


def test_the_limit_of_pixels_is_the_recipes():
    with pytest.raises(BadRecord, match="16 x 12 pixels, at most 191"):
        check_image(image(), ImageLimits(191, PixelForm(3)))
    assert check_image(image(), ImageLimits(192, PixelForm(3))).width == 16


def stripe(file_format: str, length: int, width: int = 1) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (width, length)).save(stream, file_format)
    return stream.getvalue()


@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "JPEG2000"])
@pytest.mark.parametrize("store", STORES, ids=lambda store: store.kind)
def test_an_image_whose_side_is_too_long_for_the_decoder_is_set_aside_or_stored_as_one_that_decodes(file_format, store):
    for length, width in ((1_000_000, 1), (1_000_001, 1), (70_000, 9)):
        try:
            checked = check_image(stripe(file_format, length, width), ImageLimits(2_000_000, PixelForm(1), store))
        except BadRecord as error:
            assert (error.reason, length > 1_000_000) == ("too_many_pixels", True) and store.kind != "raw"
        else:
            assert length <= 1_000_000 or store.kind == "raw"
            shape = ImageShape(height=5, width=6, channels=1)
            assert decode_image(checked.encoded, shape, pixels=store.kind == "raw").shape == (5, 6, 1)


def test_a_png_whose_data_name_too_small_a_window_is_stored_as_one_that_decodes():
    """As some old encoders write: zlib reads it, and libpng refuses it."""
    row = b"\0" + np.random.default_rng(1).integers(0, 256, 1000, np.uint8).tobytes()
    data = zlib.compress(row * 3)
    encoded = gray_png(3, 1000, b"\x08\x1d" + data[2:])  # a window of 256 bytes
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.decode_image(encoded)
    checked = check_image(encoded, ImageLimits(10_000, PixelForm(1)))
    expected = np.frombuffer(row[1:] * 3, np.uint8).reshape(3, 1000, 1)
    np.testing.assert_array_equal(tf.io.decode_image(checked.encoded).numpy(), expected)


def test_an_example_whose_image_the_decoder_refuses_is_named(tmp_path):
    folder = ExampleFolder(train_folders.digits(tmp_path / "examples", limit=40))
    with pytest.raises(tf.errors.InvalidArgumentError, match="did not hold"), reading(folder.uri):
        tf.debugging.assert_equal(1, 2)
    [shard] = folder.files("train")
    records = [*tf.data.TFRecordDataset(shard).as_numpy_iterator()]
    example = tf.train.Example.FromString(records[2])
    example.features.feature["raw/image"].bytes_list.value[0] = stripe("PNG", 1_000_001)
    example.features.feature["key"].bytes_list.value[0] = b"cats/2.png"
    with tf.io.TFRecordWriter(shard) as writer:
        for record in [*records[:2], example.SerializeToString(), *records[3:]]:
            writer.write(record)
    named = r"example cats/2\.png \(.*train-00000.*cannot be decoded: Invalid PNG.*Remove it"
    with pytest.raises(DataError, match=named), reading(folder.uri):
        list(folder.pixel_batches("train", 2))


def pillow_says(encoded: bytes) -> str | None:
    """Return why Pillow refuses the image: the verdict that the faster checks must come to as well."""
    try:
        with Image.open(io.BytesIO(encoded), formats=("JPEG", "PNG", "GIF", "TIFF")) as image:
            image.load()
            image.getexif()
    except UnidentifiedImageError:
        return "not_an_image"
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, OverflowError, struct.error, zlib.error):
        return "truncated_image"
    return None


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.kind)
def test_cut_and_flipped_images_keep_pillows_verdict_and_what_is_let_through_decodes(store):
    random = np.random.default_rng(7)
    kinds = (image(), image("P"), image("L", "JPEG"), image("RGB", "JPEG", progressive=True), TURNED)
    for encoded in (*kinds, image("P", "GIF"), image("RGB", "TIFF")):
        for _ in range(40):
            broken = bytearray(encoded[: random.integers(1, 2 * len(encoded))])
            for position in random.integers(0, len(broken), random.integers(0, 3)):
                broken[position] = random.integers(0, 256)
            reason = pillow_says(bytes(broken))
            try:
                checked = check_image(bytes(broken), ImageLimits(10**9, PixelForm(3), store))
            except BadRecord as error:
                assert error.reason == reason
                continue
            assert reason is None
            pixels = store.kind == "raw"
            shape = SMALL if pixels else SHAPE
            assert decode_image(checked.encoded, shape, pixels=pixels).shape == (shape.height, shape.width, 3)


def photograph(height=96, width=120) -> Image.Image:
    noise = np.random.default_rng(2).integers(40, 216, (4, 5, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def saved(image: Image.Image, file_format: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("encoded", "start"),
    [
        (saved(photograph(), "JPEG", quality=95), b"\xff\xd8"),
        (saved(photograph(), "WEBP", quality=95), b"\xff\xd8"),
        (saved(photograph(), "PNG"), b"\x89PNG"),
        (saved(photograph().transpose(Image.Transpose.ROTATE_90), "JPEG", quality=95, exif=EXIF), b"\xff\xd8"),
    ],
    ids=["jpeg", "webp", "png", "turned jpeg"],
)
def test_a_larger_image_is_stored_small_and_trains_as_it_would_have(encoded, start):
    """Compared are the pixels that training sees, once of the image and once of what is kept of it."""
    shape = ImageShape(height=24, width=30, channels=3)
    expected = decode_image(saved(photograph(), "PNG"), shape).numpy()
    small = check_image(encoded, ImageLimits(10**6, PixelForm(3), Store("training_size", (24, 30))))
    assert (small.height, small.width) == (96, 120)
    assert small.encoded.startswith(start)
    assert tf.io.decode_image(small.encoded).shape == (28, 35, 3)
    assert np.abs(decode_image(small.encoded, shape).numpy() - expected).mean() < 3
    raw = check_image(encoded, ImageLimits(10**6, PixelForm(3), Store("raw", (24, 30))))
    assert len(raw.encoded) == 24 * 30 * 3
    pixels = decode_image(raw.encoded, shape, pixels=True).numpy()
    assert np.abs(pixels - expected).mean() < 3
    png = encode_pixels(tf.constant([raw.encoded]), shape)
    np.testing.assert_array_equal(decode_image(png[0], shape).numpy(), pixels)


@pytest.mark.parametrize("file_format", ["GIF", "BMP", "WEBP", "TIFF"])
def test_the_served_graph_refuses_formats_that_tensorflow_decodes_otherwise(file_format):
    with pytest.raises(tf.errors.InvalidArgumentError, match="JPEG or PNG is expected"):
        tf.function(lambda encoded: decode_image(encoded, SHAPE))(tf.constant(image(file_format=file_format)))


@pytest.mark.parametrize("marker", [True, False])
def test_the_served_graph_refuses_cmyk_of_which_tensorflow_may_show_the_negative(marker):
    encoded = image("CMYK", "JPEG")
    at = encoded.index(b"Adobe") - 4
    encoded = encoded if marker else encoded[:at] + encoded[at + 16 :]
    with pytest.raises(tf.errors.InvalidArgumentError, match="a JPEG in CMYK is not decoded here"):
        tf.function(lambda encoded: decode_image(encoded, SHAPE))(tf.constant(encoded))
    _, given = checked("a", encoded, PixelForm(3))
    stored = check_image(encoded, ImageLimits(10_000_000, PixelForm(3))).encoded
    np.testing.assert_array_equal(decode_image(given, SHAPE), decode_image(stored, SHAPE))


def tiff(pixels: np.ndarray, *, apart: bool) -> bytes:
    """Colors of an uncompressed TIFF: in one strip, or in a strip for each channel."""
    height, width, channels = pixels.shape
    strips = [pixels[..., channel].tobytes() for channel in range(channels)] if apart else [pixels.tobytes()]
    count, bits = len(strips), pixels.itemsize * 8
    behind = 8 + 2 + 12 * 10 + 4
    first = behind + 6 + 8 * count
    starts = [first + sum(map(len, strips[:place])) for place in range(count)]
    one = count == 1
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 3, behind), (259, 3, 1, 1), (262, 3, 1, 2)]
    tags += [(273, 4, count, starts[0] if one else behind + 6), (277, 3, 1, 3), (278, 4, 1, height)]
    tags += [(279, 4, count, len(strips[0]) if one else behind + 6 + 4 * count), (284, 3, 1, 2 if apart else 1)]
    head = b"II*\0" + struct.pack("<IH", 8, 10) + b"".join(struct.pack("<HHII", *tag) for tag in tags)
    lists = struct.pack(f"<{2 * count}I", *starts, *map(len, strips))
    return head + struct.pack("<I3H", 0, bits, bits, bits) + lists + b"".join(strips)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("wide", [True, False])
def test_a_tiff_is_read_as_it_is_or_refused(apart, wide):
    pixels = np.random.default_rng(5).integers(0, 256, (6, 8, 3), np.uint8)
    encoded = tiff(pixels.astype(np.uint16) * 257 if wide else pixels, apart=apart)
    shape, form = ImageShape(height=6, width=8, channels=3), PixelForm(3)
    if wide and apart:
        for refused in (check_image, image_input):
            with pytest.raises((BadRecord, ValueError), match="of 16 bits are in separate planes"):
                refused(encoded, ImageLimits(1000, form) if refused is check_image else shape.model_dump())
        assert checked("a", encoded, form).reason == "unscaled_image"
        return
    np.testing.assert_array_equal(decode_pixels(check_image(encoded, ImageLimits(1000, form)).encoded, shape), pixels)
    np.testing.assert_array_equal(decode_image(checked("a", encoded, form)[1], shape), pixels)
    np.testing.assert_array_equal(image_input(encoded, shape.model_dump()), pixels)


def test_an_image_of_another_size_is_resized_and_one_of_the_right_size_is_not_touched():
    encoded = image()
    original = np.asarray(Image.open(io.BytesIO(encoded)), np.float32)
    np.testing.assert_array_equal(decode_image(encoded, SHAPE).numpy(), original)
    smaller = decode_image(encoded, ImageShape(height=6, width=8, channels=1)).numpy()
    assert smaller.shape == (6, 8, 1)
    # Shrinking with antialiasing keeps the mean of the luma.
    luma = original @ np.array([0.299, 0.587, 0.114])
    assert abs(smaller.mean() - luma.mean()) < 3


ROWS = np.arange(12)[:, None] * 20 + np.zeros(16, int)  # a shape that only the alpha channel holds
BLACK = np.zeros((12, 16), np.uint8)


def transparent(mode: str, file_format: str) -> bytes:
    """Black pixels whose alpha falls from 255 to 35 down the rows, or is 0 in the upper half if it has two levels."""
    stream = io.BytesIO()
    alpha = (255 - ROWS).astype(np.uint8)
    if mode in ("P", "RGB"):
        indices = np.where(np.arange(12)[:, None] < 6, 0, 1) + np.zeros((12, 16), int)
        image = Image.fromarray(indices.astype(np.uint8), "P")
        image.putpalette([0, 0, 0, 9, 9, 9])
        image = image.convert(mode)
        image.save(stream, file_format, transparency=0 if mode == "P" else (0, 0, 0))
    else:
        channels = [BLACK] * (len(mode) - 1) + [alpha]
        Image.fromarray(np.stack(channels, -1), mode).save(stream, file_format, lossless=True)
    return stream.getvalue()


def levels(mode: str) -> np.ndarray:
    return np.where(np.arange(12) < 6, 255, 9) if mode in ("P", "RGB") else ROWS[:, 0]


ALPHA = [("RGBA", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGB", "PNG"), ("RGBA", "WEBP"), ("P", "GIF"), ("RGBA", "TIFF")]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("store", [Store(), Store("raw", (12, 16))], ids=lambda store: store.kind)
@pytest.mark.parametrize(("mode", "file_format"), ALPHA)
def test_transparent_pixels_are_white_in_training_prediction_and_the_served_graph(mode, file_format, store, channels):
    encoded = transparent(mode, file_format)
    form, shape = PixelForm(channels), ImageShape(height=12, width=16, channels=channels)
    stored = check_image(encoded, ImageLimits(1000, form, store))
    trained = decode_image(stored.encoded, shape, pixels=store.kind == "raw").numpy()
    assert trained[:, 0, 0].tolist() == levels(mode).tolist()
    assert np.ptp(trained, axis=1).max() == 0
    assert not stored.constant
    _, given = checked("a", encoded, form)
    np.testing.assert_array_equal(decode_image(given, shape).numpy(), trained)
    if file_format == "PNG":
        np.testing.assert_array_equal(decode_image(encoded, shape).numpy(), trained)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_transparent_gray_of_any_depth_is_white_in_training_and_in_the_served_graph(bits):
    row = bytes([0, *range(bits)])  # the filter, then eight pixels, of which the first are 0
    header = struct.pack(">IIBBBBB", 8, 6, bits, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"tRNS", b"\0\0"), (b"IDAT", zlib.compress(row * 6)), (b"IEND", b"")]
    encoded = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    shape = ImageShape(height=6, width=8, channels=1)
    served = decode_image(encoded, shape).numpy()
    assert served[0, 0] == 255
    stored = check_image(encoded, ImageLimits(1000, PixelForm(1))).encoded
    np.testing.assert_array_equal(decode_pixels(stored, shape).numpy(), served)


def deep(dtype: type, largest: float, file_format: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray((ROWS / 220 * largest).astype(dtype)).save(stream, file_format)
    return stream.getvalue()


DEEP = [(np.uint16, 1020, "PNG"), (np.uint16, 4095, "TIFF"), (np.float32, 1.0, "TIFF"), (np.int32, 255, "TIFF")]


@pytest.mark.parametrize(("dtype", "largest", "file_format"), DEEP)
def test_a_white_level_scales_images_of_more_than_eight_bits(dtype, largest, file_format):
    encoded = deep(dtype, largest, file_format)
    form, shape = PixelForm(1, largest), ImageShape(height=12, width=16, channels=1, white_level=largest)
    checked_image = check_image(encoded, ImageLimits(1000, form))
    trained = decode_image(checked_image.encoded, shape).numpy()
    np.testing.assert_allclose(trained[..., 0], ROWS / 220 * 255, atol=1.01)
    assert checked_image.level is None
    _, given = checked("a", encoded, form)
    np.testing.assert_array_equal(decode_image(given, shape).numpy(), trained)


@pytest.mark.parametrize(("dtype", "largest", "file_format"), DEEP)
def test_without_a_white_level_few_levels_are_counted_and_other_numbers_set_aside(dtype, largest, file_format):
    encoded = deep(dtype, largest, file_format)
    if dtype is np.uint16:
        assert check_image(encoded, ImageLimits(1000, PixelForm(1))).level == largest // 256
        return
    with pytest.raises(BadRecord, match=r"Set data\.white_level") as caught:
        check_image(encoded, ImageLimits(1000, PixelForm(1)))
    assert caught.value.reason == "unscaled_image"
    rejected = checked("a", encoded, PixelForm(1))
    assert isinstance(rejected, BadRow) and rejected.reason == "unscaled_image"


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.kind)
@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_an_image_of_one_color_is_known_and_no_other(file_format, store):
    for mode, color in (("L", 0), ("RGB", (200, 30, 90))):
        stream = io.BytesIO()
        Image.new(mode, (64, 48), color).save(stream, file_format)
        assert check_image(stream.getvalue(), ImageLimits(10_000, PixelForm(3), store)).constant
        image = Image.new(mode, (64, 48), color)
        image.paste(255 if mode == "L" else (255, 255, 255), (20, 20, 36, 36))
        stream = io.BytesIO()
        image.save(stream, file_format)
        assert not check_image(stream.getvalue(), ImageLimits(10_000, PixelForm(3), store)).constant


def drawn(mode: str, file_format: str, size=(31, 47), palette=None, **options) -> bytes:
    """Colors that change from pixel to pixel here, and little there, in an image of odd sides.

    palette: the bits of its index, by default 8.
    """
    draw = np.random.default_rng(3)
    pixels = draw.integers(0, 256, (*size, 4), np.uint8)
    smooth = pixels[:, : size[1] // 2]
    smooth[:] = np.linspace(0, 255, smooth.shape[1], dtype=np.uint8)[:, None]
    stream = io.BytesIO()
    made = Image.fromarray(pixels)
    made = made.convert("RGB").quantize(2**palette) if palette else made.convert(mode)
    made.save(stream, file_format, **options)
    return stream.getvalue()


def wide_png(**options: int) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(4).integers(0, 5000, (31, 47)).astype(np.uint16)
    Image.fromarray(pixels).save(stream, "PNG", **options)
    return stream.getvalue()


def transparent_wide_png() -> bytes:
    level = int(np.asarray(Image.open(io.BytesIO(wide_png())))[5, 7])
    return wide_png(transparency=level)


ON_DEVICE = {
    "JPEG, halved colors": drawn("RGB", "JPEG"),
    "JPEG, colors halved across": drawn("RGB", "JPEG", subsampling=1),
    "JPEG, all colors": drawn("RGB", "JPEG", subsampling=0),
    "JPEG, progressive": drawn("RGB", "JPEG", progressive=True),
    "JPEG, of four pixels": drawn("RGB", "JPEG", size=(3, 4)),
    "JPEG, gray": drawn("L", "JPEG"),
    "PNG, palette": drawn("P", "PNG"),
    **{f"PNG, palette of {bits} bits": drawn("P", "PNG", palette=bits) for bits in (1, 2, 4)},
    "PNG, palette with a transparent color": drawn("P", "PNG", transparency=3),
    "PNG, 16 bits": wide_png(),
    "PNG, 16 bits with a transparent gray": transparent_wide_png(),
    **{f"PNG, {mode}": drawn(mode, "PNG") for mode in ("1", "L", "LA", "RGB", "RGBA")},
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("encoded", ON_DEVICE.values(), ids=ON_DEVICE)
def test_a_device_makes_of_an_image_file_the_pixels_that_the_model_was_trained_on(encoded, channels):
    for size in ((31, 47), (9, 14), (40, 50), (31, 20)):
        for white_level in (None, 4095.0):
            shape = ImageShape(height=size[0], width=size[1], channels=channels, white_level=white_level)
            made = image_input(encoded, shape.model_dump())
            expected = decode_image(tf.constant(encoded), shape).numpy()
            if white_level is None and size == (31, 47):
                stored = check_image(encoded, ImageLimits(10_000, PixelForm(channels))).encoded
                np.testing.assert_allclose(decode_pixels(stored, shape).numpy(), expected, atol=0.5)
            assert made.dtype == np.float32 and made.shape == expected.shape
            assert np.abs(made - expected).max() <= 255e-6


def test_a_device_turns_an_image_as_its_camera_was_and_refuses_what_is_none():
    assert image_input(TURNED, SHAPE.model_dump() | {"height": 16, "width": 12}).shape == (16, 12, 3)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(TURNED))))
    assert (image_input(TURNED, SHAPE.model_dump() | {"height": 16, "width": 12}) == upright).all()
    for encoded in (b"", b"no image", TURNED[:200], bomb()):
        with pytest.raises(
            ValueError, match=r"no image: [\d,]+ bytes that begin with|no image that can be read|pixels"
        ):
            image_input(encoded, SHAPE.model_dump())


def test_training_size_leaves_a_seventh_for_crops_keeps_the_shape_and_never_enlarges():
    store = Store("training_size", (224, 224))
    assert store.size(375, 500) == (256, 341)
    assert store.size(2000, 256) is None
    assert store.size(256, 300) is None
    assert Store("training_size", (100, 224)).size(1000, 1000) == (256, 256)
    assert Store("original", (224, 224)).size(375, 500) is None
    assert Store("raw", (224, 224)).size(8, 8) == (224, 224)
