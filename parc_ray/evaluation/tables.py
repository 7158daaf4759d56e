"""Tables of figures with intervals, as Markdown and LaTeX; the paper's rows say whose they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parc_ray.evaluation.bootstrap import Interval

PAPER_LABEL = "paper (published)"
OURS_LABEL = "this run"
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table of text.

    Attributes:
        title: heading.
        columns: headings of the columns.
        rows: cells, as many per row as there are columns.
        note: what must be said about it.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits and no exponent; a dash for what is missing."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(places, 8)}f}"


def interval(found: Interval | None, digits: int = 3) -> str:
    """A mean and the ends of its interval: ``1.23 [1.10, 1.40]``."""
    if found is None or not math.isfinite(found.mean):
        return "–"
    mean = number(found.mean, digits)
    if not math.isfinite(found.low):
        return mean
    return f"{mean} [{number(found.low, digits)}, {number(found.high, digits)}]"


def row_of(label: str, whose: str, cells: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """A row: label, whose it is, and a cell per name, a dash where there is none."""
    return [label, whose, *(cells.get(name, "–") for name in names)]


def markdown(sheets: Sequence[Sheet], title: str, text: str = "") -> str:
    """A Markdown page."""
    parts = [f"# {title}", text] if text else [f"# {title}"]
    for sheet in sheets:
        lines = [
            "| " + " | ".join(_bare(c) for c in sheet.columns) + " |",
            "|" + "---|" * len(sheet.columns),
            *("| " + " | ".join(_bare(c) for c in row) + " |" for row in sheet.rows),
        ]
        parts += [f"## {sheet.title}", "\n".join(lines)]
        if sheet.note:
            parts.append(sheet.note)
    return "\n\n".join(parts) + "\n"


def latex(sheets: Sequence[Sheet]) -> str:
    """``tabular`` environments in ``table`` floats; needs no package."""
    parts = []
    for sheet in sheets:
        kinds = "ll" + "r" * (len(sheet.columns) - 2)
        lines = [" & ".join(escaped(c) for c in row) + r" \\" for row in sheet.rows]
        caption = f"{sheet.title}. {sheet.note}".rstrip(". ") + "."
        parts.append(
            "\n".join(
                [
                    r"\begin{table}",
                    rf"\caption{{{escaped(caption)}}}",
                    rf"\begin{{tabular}}{{{kinds}}}",
                    r"\hline",
                    " & ".join(escaped(c) for c in sheet.columns) + r" \\",
                    r"\hline",
                    *lines,
                    r"\hline",
                    r"\end{tabular}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_LATEX.get(c, c) for c in text).replace("–", "--")


def _bare(text: str) -> str:
    return text.replace("|", "\\|")
