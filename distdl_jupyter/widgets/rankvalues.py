"""The values that a cell's ranks give back: a sequence, or a mapping by rank, shown with equal ones folded.

What is shown are the forms that each rank made of its own value, so that nothing is compared, formatted or imported
here before somebody looks at a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

from distdl_jupyter.ranks import html as saved
from distdl_jupyter.ranks.answer import spans

#: Forms of a value by MIME type, always with text/plain.
Forms = Mapping[str, str]


class Text(Protocol):
    """IPython's pretty printer, as far as it is used."""

    output_width: int
    buffer_width: int

    def text(self, obj: str) -> object:
        """Write."""


class _Shown:
    """Shows forms by rank; a value itself is opened only when it is looked at."""

    _values: Mapping[int, Any]
    _forms: Mapping[int, Forms]

    def _repr_pretty_(self, printer: Text, cycle: bool) -> None:  # noqa: FBT001 - IPython's protocol
        # Inside a tuple or list it stands in a line with others.
        alone = not printer.output_width and not printer.buffer_width
        printer.text(as_text(folded(self._forms)) if alone else repr(self))

    def _repr_html_(self) -> str:
        return saved.values(folded(self._forms))

    def __repr__(self) -> str:
        texts = {rank: _plain(self._forms.get(rank, {})) for rank in self._values}
        inside = ", ".join(text if isinstance(self, Sequence) else f"{rank}: {text}" for rank, text in texts.items())
        return f"[{inside}]" if isinstance(self, Sequence) else f"{{{inside}}}"


class Values(_Shown, Sequence[Any]):
    """The value of every rank, in order of rank."""

    def __init__(self, values: Mapping[int, Any], forms: Mapping[int, Forms]) -> None:
        self._values = values
        self._forms = forms

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...

    def __getitem__(self, at: int | slice) -> Any:
        rank = range(len(self))[at]
        return [self._values[one] for one in rank] if isinstance(rank, range) else self._values[rank]

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list


class ValuesOf(_Shown, Mapping[int, Any]):
    """The values of some ranks, by rank."""

    def __init__(self, values: Mapping[int, Any], forms: Mapping[int, Forms]) -> None:
        self._values = values
        self._forms = forms

    def __getitem__(self, rank: int) -> Any:
        return self._values[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def folded(forms: Mapping[int, Forms]) -> list[tuple[tuple[int, ...], Forms]]:
    """Return (ranks, forms) with those folded whose text is equal, in order of their first rank."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(forms):
        groups.setdefault(_plain(forms[rank]), []).append(rank)
    return [(tuple(ranks), forms[ranks[0]]) for ranks in groups.values()]


def as_text(groups: Sequence[tuple[Sequence[int], Forms]]) -> str:
    """Return lines such as ``[0-3] 0.25``; further lines of a value stand below its first."""
    heads = [f"[{spans(ranks)}]" for ranks, _ in groups]
    width = max(map(len, heads), default=0)
    lines = []
    for head, (_, forms) in zip(heads, groups, strict=True):
        first, *more = _plain(forms).split("\n")
        lines += [f"{head:<{width}} {first}", *(f"{'':<{width}} {line}" for line in more)]
    return "\n".join(lines)


def _plain(forms: Forms) -> str:
    return forms.get("text/plain", "None")
