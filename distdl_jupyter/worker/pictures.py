"""Display in a rank: ``display(figure)`` and ``plt.show()`` send an image to the job. Other values are printed.

Only PNG and JPEG are sent, because a page can show them without running code. The job's supervisor checks each image
again with ``detect_format`` and stores it (``supervisor.parts``).
"""

from __future__ import annotations

import binascii
import contextlib
import functools
import io
import os
import struct
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.hooks.imports import HookFinder

#: Our matplotlib backend, and the modules that re-export IPython's ``display``.
_BACKEND = "module://distdl_jupyter.worker.mplbackend"
_DISPLAY_MODULES = ("IPython.display", "IPython.core.display")

#: Maximum number of images, and of bytes and pixels in one (a few bytes can expand to gigabytes in a page).
MAX_IMAGES, MAX_BYTES, _MAX_PIXELS = 100, 2_000_000, 50_000_000
#: The first bytes of each format.
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
#: MIME types of images with IPython's representation methods, in order of preference.
_REPR_METHODS = (("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_"))
_sent_count = 0


class ImageFormat(NamedTuple):
    """The format of an image, ``png`` or ``jpeg``, and its size in pixels."""

    name: str
    width: int
    height: int


def detect_format(data: bytes) -> ImageFormat | None:
    """Return the format and size of an image, or None if it is not a PNG or JPEG or has too many pixels."""
    detected = None
    if data.startswith(_PNG) and data[12:16] == b"IHDR" and len(data) >= 24:
        detected = ImageFormat("png", *struct.unpack(">II", data[16:24]))
    offset = 2
    # The frame header of a JPEG may follow other segments.
    while data.startswith(_JPEG) and detected is None and offset + 9 <= len(data) and data[offset] == 0xFF:
        marker, length = data[offset + 1], int.from_bytes(data[offset + 2 : offset + 4])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[offset + 5 : offset + 9])
            detected = ImageFormat("jpeg", width, height)
        offset += 1 if marker == 0xFF else 2 + length
    return detected if detected is not None and 0 < detected.width * detected.height <= _MAX_PIXELS else None


def install_hooks(finder: HookFinder) -> None:
    """Make ``plt.show()`` and IPython's ``display`` send images, and make rich print as if there were no terminal.

    These libraries are not imported here. A matplotlib backend that the user has set is not changed.
    """
    if not os.environ.get("MPLBACKEND"):
        os.environ["MPLBACKEND"] = _BACKEND
        if (matplotlib := sys.modules.get("matplotlib")) is not None:  # imported by a template
            matplotlib.rcParams["backend"] = _BACKEND
    # rich would redraw its progress bar for each metric and fill the log. Without a terminal, it prints each bar once.
    os.environ.setdefault("TTY_INTERACTIVE", "0")
    finder.hook("IPython.core.display_functions", _replace_display)


def _replace_display(functions: ModuleType) -> None:
    original = functions.display

    @functools.wraps(original)
    def show(*objects: Any, **options: Any) -> Any:
        shells = sys.modules.get("IPython.core.interactiveshell")
        is_shell = shells is not None and shells.InteractiveShell.initialized()
        return (original if is_shell else display)(*objects, **options)

    for module in (functions, *filter(None, map(sys.modules.get, _DISPLAY_MODULES))):
        if vars(module).get("display") is original:
            module.display = show  # type: ignore[attr-defined]


def display(*objects: Any, raw: bool = False, **_options: Any) -> None:
    """Show each object as an image if it has an image representation, else as text, like ``display`` in a notebook."""
    for value in objects:
        images: list[bytes] = []
        if channel.get_channel() is not None and not isinstance(value, type):
            with contextlib.suppress(Exception):  # a user-defined method; the text is shown instead
                images = [data for data in _find_images(value, raw=raw) if detect_format(data)]
        if images:
            _send(images)
        else:
            print(value.get("text/plain", "") if raw and isinstance(value, dict) else value)  # noqa: T201


def show_figure(figure: Any) -> None:
    """Send a matplotlib figure to the job as a PNG."""
    _send(list(_find_images(figure, raw=False)))


def _find_images(value: Any, *, raw: bool) -> Iterator[bytes]:
    """Yield the images of a value, in order of preference. ``raw`` values are MIME bundles."""
    figures = sys.modules.get("matplotlib.figure")
    if figures is not None and isinstance(value, figures.Figure):
        file = io.BytesIO()
        value.savefig(file, format="png")
        yield file.getvalue()
        return

    def represent(method: str) -> Any:
        call = None if raw else getattr(type(value), method, None)
        result = None if call is None else call(value)
        return result[0] if isinstance(result, tuple) else result  # data and metadata

    bundle = value if raw else represent("_repr_mimebundle_")
    for mime, method in _REPR_METHODS:
        data = bundle.get(mime) if isinstance(bundle, dict) else None
        data = represent(method) if data is None else data
        data = binascii.a2b_base64(data) if isinstance(data, str) else data
        if isinstance(data, bytes):
            yield data


def _send(images: list[bytes]) -> None:
    global _sent_count
    current = channel.get_channel()
    image = next((data for data in images if len(data) <= MAX_BYTES), None)
    if image is None:
        size, limit = min(map(len, images)) / 1e6, MAX_BYTES / 1e6
        remedy = "use a smaller figure or a lower dpi"
        print(f"[image omitted: its size is {size:.1f} MB, but the limit is {limit:.0f} MB; {remedy}]")  # noqa: T201
        return
    _sent_count += 1
    if current is not None and _sent_count <= MAX_IMAGES:
        current.send_picture(image)
    elif _sent_count == MAX_IMAGES + 1:
        print(f"[This rank has shown {MAX_IMAGES} images; later ones are omitted.]")  # noqa: T201
