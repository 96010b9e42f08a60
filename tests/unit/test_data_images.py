"""Images: what is kept as it is, what is re-encoded, what is quarantined; and the one decoder."""

import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from trainyard.contract.artifacts import ImageShape
from trainyard.data.images import decode_image
from trainyard.steps.preprocess.readers.images import check_image
from trainyard.steps.preprocess.readers.records import BadRecord

SHAPE = ImageShape(height=12, width=16, channels=3)


def picture(mode="RGB", file_format="PNG", **options) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (12, 16, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, file_format, **options)
    return stream.getvalue()


def bomb() -> bytes:
    """A PNG whose header says 50,000 x 50,000 pixels: 2.5 GB if decoded."""
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(100_000))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "1"])
def test_png_bytes_are_kept_whatever_the_mode(mode):
    encoded = picture(mode)
    assert check_image(encoded, 1000, 3).encoded == encoded


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_bytes_are_kept(mode):
    encoded = picture(mode, "JPEG")
    assert check_image(encoded, 1000, 1).encoded == encoded


def test_cmyk_bmp_webp_and_gif_become_png_with_the_same_pixels():
    for mode, file_format in [("CMYK", "JPEG"), ("RGB", "BMP"), ("RGB", "WEBP"), ("P", "GIF"), ("CMYK", "TIFF")]:
        encoded = picture(mode, file_format)
        checked = check_image(encoded, 1000, 3)
        assert checked.encoded.startswith(b"\x89PNG"), file_format
        expected = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"), np.float32)
        np.testing.assert_array_equal(decode_image(checked.encoded, SHAPE).numpy(), expected)


def test_sixteen_bits_are_scaled_and_not_cut_off():
    values = np.linspace(0, 65535, 12 * 16).reshape(12, 16).astype(np.uint16)
    for file_format in ("PNG", "TIFF"):
        stream = io.BytesIO()
        Image.fromarray(values).save(stream, file_format)
        checked = check_image(stream.getvalue(), 1000, 1)
        decoded = decode_image(checked.encoded, ImageShape(height=12, width=16, channels=1)).numpy()[..., 0]
        np.testing.assert_allclose(decoded, values / 257, atol=1.01)


def test_an_exif_orientation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the picture is 16 high
    checked = check_image(picture("RGB", "JPEG", exif=exif), 1000, 3)
    assert (checked.height, checked.width) == (16, 12)
    assert tf.io.decode_png(checked.encoded).shape == (16, 12, 3)


def test_an_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (16, 12), colour) for colour in ("red", "blue")]
    stream = io.BytesIO()
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
    decoded = decode_image(check_image(stream.getvalue(), 1000, 3).encoded, SHAPE).numpy()
    np.testing.assert_array_equal(decoded[0, 0], [255, 0, 0])


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "zero_bytes"),
        (b"<html>not found</html>", "not_an_image"),
        (b"\x00" * 4096, "not_an_image"),
        (picture("RGB", "JPEG")[:-100], "truncated_image"),
        (picture("RGB", "PNG")[:200], "truncated_image"),
        (bomb(), "too_many_pixels"),
        (picture("RGB", "EPS"), "not_an_image"),
        (picture("RGB", "ICO"), "not_an_image"),
    ],
    ids=["empty", "html", "zeros", "cut jpeg", "cut png", "bomb", "a program for Ghostscript", "a size that is hidden"],
)
def test_a_bad_image_is_named(encoded, reason):
    with pytest.raises(BadRecord) as caught:
        check_image(encoded, 1_000_000, 3)
    assert caught.value.reason == reason


def test_the_limit_of_pixels_is_the_recipes():
    with pytest.raises(BadRecord, match="16 x 12 pixels, at most 191"):
        check_image(picture(), 191, 3)
    assert check_image(picture(), 192, 3).width == 16


def test_no_cut_or_flipped_byte_escapes_as_another_error():
    """Every image that is let through is one that TensorFlow decodes."""
    random = np.random.default_rng(7)
    for encoded in (picture("RGB", "PNG"), picture("L", "JPEG"), picture("P", "GIF"), picture("RGB", "TIFF")):
        for _ in range(60):
            broken = bytearray(encoded[: random.integers(1, len(encoded) + 1)])
            for position in random.integers(0, len(broken), 3):
                broken[position] = random.integers(0, 256)
            try:
                checked = check_image(bytes(broken), 1_000_000, 3)
            except BadRecord:
                continue
            assert decode_image(checked.encoded, SHAPE).shape == (12, 16, 3)


def test_an_image_of_another_size_is_resized_and_one_of_the_right_size_is_not_touched():
    encoded = picture()
    original = np.asarray(Image.open(io.BytesIO(encoded)), np.float32)
    np.testing.assert_array_equal(decode_image(encoded, SHAPE).numpy(), original)
    smaller = decode_image(encoded, ImageShape(height=6, width=8, channels=1)).numpy()
    assert smaller.shape == (6, 8, 1)
    # Shrinking with antialiasing keeps the mean of the luma.
    luma = original @ np.array([0.299, 0.587, 0.114])
    assert abs(smaller.mean() - luma.mean()) < 3
