"""Draw flowers, one folder per kind: `python draw.py FOLDER IMAGES_PER_KIND SEED KIND…`."""

import math
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter

# Petals, and their length and width as shares of the image.
KINDS = {
    "daisy": (13, 0.36, 0.07), "buttercup": (5, 0.26, 0.18), "clover": (3, 0.30, 0.24), "lily": (6, 0.40, 0.13),
    "pansy": (5, 0.34, 0.26), "aster": (18, 0.34, 0.05), "poppy": (4, 0.32, 0.30), "star": (7, 0.42, 0.08),
    "cosmos": (8, 0.36, 0.16), "phlox": (5, 0.22, 0.10),
}  # fmt: skip


def flower(kind: str, draw: random.Random, side: int = 96) -> Image.Image:
    """Draw one flower with leaves and grass around it."""
    petals, length, width = KINDS[kind]
    large = 2 * side
    ground = tuple(draw.randint(20, 120) for _ in range(3))
    image = Image.new("RGB", (large, large), ground)
    canvas = ImageDraw.Draw(image)
    for _ in range(40):  # leaves and grass
        x, y, length_of_blade = draw.uniform(0, large), draw.uniform(0, large), draw.uniform(10, 60)
        angle = draw.uniform(0, 2 * math.pi)
        end = (x + length_of_blade * math.cos(angle), y + length_of_blade * math.sin(angle))
        canvas.line([(x, y), end], fill=(draw.randint(0, 80), draw.randint(60, 160), draw.randint(0, 80)), width=3)
    color = tuple(draw.randint(110, 255) for _ in range(3))
    scale, turn = draw.uniform(0.7, 1.15), draw.uniform(0, 2 * math.pi)
    center = large / 2 + draw.uniform(-14, 14), large / 2 + draw.uniform(-14, 14)
    for number in range(petals):
        angle = turn + 2 * math.pi * (number + draw.uniform(-0.08, 0.08)) / petals
        shade = tuple(min(255, max(0, part + draw.randint(-20, 20))) for part in color)
        canvas.polygon(petal(center, angle, large * length * scale, large * width * scale), fill=shade)
    radius = large * draw.uniform(0.04, 0.08)
    box = [center[0] - radius, center[1] - radius, center[0] + radius, center[1] + radius]
    canvas.ellipse(box, fill=(draw.randint(150, 255), draw.randint(100, 200), 30))
    return image.filter(ImageFilter.GaussianBlur(draw.uniform(0.5, 2.0))).resize((side, side))


def petal(center, angle, length, width):
    """Return the outline of an ellipse from the center of the flower."""
    points = []
    for step in range(24):
        t = 2 * math.pi * step / 24
        along, across = length / 2 * (1 + math.cos(t)), width / 2 * math.sin(t)
        points.append(
            (
                center[0] + along * math.cos(angle) - across * math.sin(angle),
                center[1] + along * math.sin(angle) + across * math.cos(angle),
            )
        )
    return points


if __name__ == "__main__":
    folder, count, seed, kinds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    for kind in kinds:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            draw = random.Random(f"{seed} {kind} {number}")
            flower(kind, draw).save(folder / kind / f"{number:03}.jpg", quality=90)
