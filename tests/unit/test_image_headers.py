"""Headers of images, and what is whole: without TensorFlow."""

import io

import numpy as np
import pytest
from PIL import Image

from trainyard.readers import jpeg, png


def image(mode="RGB", file_format="JPEG", **options) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (24, 32, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, file_format, **options)
    return stream.getvalue()


def orientation(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


@pytest.mark.parametrize(
    ("encoded", "header"),
    [
        (image(), jpeg.JpegHeader(24, 32, 3, True)),
        (image("L", progressive=True), jpeg.JpegHeader(24, 32, 1, True)),
        (image(icc_profile=bytes(99)), jpeg.JpegHeader(24, 32, 3, True)),
        (image(exif=orientation(1)), jpeg.JpegHeader(24, 32, 3, False)),
        (image(file_format="MPO", save_all=True, append_images=[Image.new("RGB", (9, 9))]), None),
        (image("CMYK"), None),
        (image()[:100], None),
        (image().replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"), None),
    ],
    ids=["color", "gray progressive", "profile", "exif", "two images", "cmyk", "cut", "12 bits"],
)
def test_a_jpeg_is_known_from_its_header_or_left_to_others(encoded, header):
    jpeg_header = jpeg.read_header(encoded)
    assert jpeg_header == header or (header is None and jpeg_header is not None and not jpeg_header.plain)


def test_a_jpeg_that_was_cut_anywhere_is_not_whole():
    for encoded in (image(), image(progressive=True), image("L")):
        assert jpeg.decode_eighth(encoded) is not None
        assert jpeg.decode_eighth(encoded + b"after the end") is not None
        assert all(jpeg.decode_eighth(encoded[:end]) is None for end in range(1, len(encoded), 7))
        assert jpeg.decode_eighth(encoded[:-1]) is None


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "1", "I;16"])
def test_a_png_with_any_byte_changed_is_not_whole(mode):
    encoded = image(mode, "PNG")
    header = png.read_header(encoded)
    assert header is not None
    assert png.opaque_rows(encoded, header) is not None
    for position in range(33, len(encoded), 5):
        broken = bytearray(encoded)
        broken[position] ^= 1
        assert png.opaque_rows(bytes(broken), header) is None
    assert all(png.opaque_rows(encoded[:end], header) is None for end in range(33, len(encoded), 5))


def test_a_png_of_more_or_fewer_rows_than_it_promises_is_not_whole():
    encoded = image(file_format="PNG")
    for height in (23, 25):
        assert png.opaque_rows(encoded, png.PngHeader(height, 32, 8, 2)) is None
