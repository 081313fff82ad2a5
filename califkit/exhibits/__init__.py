"""Exhibits: the tables and figures of the paper, from runs, beside the paper's numbers.

One module a group of exhibits makes tables; `califkit.exhibits.plots` draws them,
`califkit.exhibits.paper` holds the printed numbers, `califkit.exhibits.notebooks` runs the
notebooks. A new exhibit: copy ``notebooks/_template.ipynb`` to ``fig<N>_<what>.ipynb`` or
``tab<N>_<what>.ipynb``, and put its table and its picture into functions here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from califkit.exhibits.exhibit import Exhibit


def open(profile: str, settings: dict[str, Any], submit: bool) -> "Exhibit":  # noqa: A001
    """What a notebook shows, from its three parameters: see `califkit.exhibits.exhibit`."""
    from califkit.exhibits.exhibit import open_exhibit

    return open_exhibit(profile, settings, submit)
