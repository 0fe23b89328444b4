"""The pictures of README and of the site: ``make pictures`` keeps what the tests put here, made from real runs.

A picture is ``NAME.png`` and ``NAME-dark.png``; a moving one ``NAME.webp``. Pages show the one of the reader's theme.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from itertools import pairwise

from PIL import Image
from playwright.sync_api import FloatRect, Locator, Page

from tests.browser.conftest import ARTIFACTS

FOLDER = ARTIFACTS / "gallery"
#: Pixels of the page around what is shown.
_MARGIN = 6
#: Of a moving picture: pixels, and milliseconds between two looks.
_WIDTH, _PAUSE_MS = 800, 400
#: The most that a moving picture may weigh: a README is read on the road as well.
MOST_BYTES = 1_500_000


def keep(name: str, *shown: Locator, dark: bool) -> None:
    """Keep a picture of what one element, or several together, take of the page."""
    picture = _opened(shown[0].page.screenshot(clip=around(*shown), animations="disabled"))
    colours = picture.getcolors(picture.width * picture.height) or []
    assert len(colours) > 20, f"{name} shows nothing"
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}{'-dark' if dark else ''}.png"
    picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def film(name: str, page: Page, clip: FloatRect, until: Callable[[], bool], *, dark: bool) -> None:
    """Keep a moving picture of a part of the page: a frame each half second in which something changed."""
    frames: list[Image.Image] = []
    seen: list[float] = []
    done = False
    while not done:
        done = until()
        frame = _opened(page.screenshot(clip=clip, scale="css"))
        frame = frame.resize((_WIDTH, round(frame.height * _WIDTH / frame.width)), Image.Resampling.LANCZOS)
        if not frames or frame.tobytes() != frames[-1].tobytes():
            frames.append(frame)
            seen.append(time.monotonic())
        page.wait_for_timeout(_PAUSE_MS)
    lasted = [min(1.0, later - earlier) for earlier, later in pairwise(seen)]
    assert len(frames) > 10, f"{name} does not move"
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}{'-dark' if dark else ''}.webp"
    times = [round(1000 * one) for one in [*lasted, 4.0]]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=60, method=4)
    assert path.stat().st_size < MOST_BYTES, f"{path} weighs {path.stat().st_size:,} bytes"


def around(*shown: Locator) -> FloatRect:
    """Return where elements are in the page, with a little around them."""
    page = shown[0].page
    assert page.viewport_size is not None
    width, height = page.viewport_size["width"], page.viewport_size["height"]
    boxes = [box for one in shown if (box := one.bounding_box())]
    bottom = max(box["y"] + box["height"] for box in boxes)
    assert bottom <= height, "all of it is seen"
    left, top = (max(0.0, min(box[name] for box in boxes) - _MARGIN) for name in ("x", "y"))
    right = min(width, max(box["x"] + box["width"] for box in boxes) + _MARGIN)
    return {"x": left, "y": top, "width": right - left, "height": min(height, bottom + _MARGIN) - top}


def _opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGB")
