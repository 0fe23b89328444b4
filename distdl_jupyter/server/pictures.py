"""What the ranks of a job have shown, as pictures and nothing else: PNG or JPEG by their bytes, and by what is said."""

from __future__ import annotations

from distdl_jupyter.core import pictures
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.server.base import Handler, answers
from distdl_jupyter.server.jobs import attached


class JobPicture(Handler):
    """One picture."""

    @answers(media="image/*", refuses=(404,))
    async def get(self, id_: str, number: str) -> None:
        """Return a picture by its number, as PNG or JPEG."""
        data, form = await self.run_in_thread(_read, id_, number)
        self.set_header("Cache-Control", "private, max-age=86400, immutable")
        self.finish(data, set_content_type=f"image/{form}")


def _read(id_: str, number: str) -> tuple[bytes, str]:
    folder = attached(id_).folder.path
    whole = number.isascii() and number.isdecimal() and len(number) <= len(str(pictures.MOST))
    found = pictures.read(folder, int(number)) if whole else None
    if found is None:
        raise JobNotFound(
            f"Job {id_} has no such image.", code="picture-unknown", hint="The job's card lists its images by number."
        )
    return found
