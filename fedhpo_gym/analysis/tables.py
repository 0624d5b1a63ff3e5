"""A table, as HTML, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One entry: what is shown, and the number behind it.

    Attributes:
        text: as it is shown.
        value: as it is computed, for CSV; None where the text is all there is.
        best: whether it is the best of those that it is compared with.
    """

    text: str
    value: float | int | None = None
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header; the first column is text, the others are numbers.

    Attributes:
        name: of its files.
        title: what it is called.
        note: what its numbers are.
        header: one word or some per column.
        rows: as many cells each.
    """

    name: str
    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def html(self) -> str:
        """Return a `<table>` element."""
        head = "".join(
            f'<th scope="col"{_look(place, best=False)}>{escape(word)}</th>'
            for place, word in enumerate(self.header)
        )
        lines = [f"<tr>{head}</tr>"]
        for row in self.rows:
            cells = (
                f"<td{_look(place, best=cell.best)}>{escape(cell.text)}</td>"
                for place, cell in enumerate(row)
            )
            lines.append(f"<tr>{''.join(cells)}</tr>")
        return "<table>\n" + "\n".join(lines) + "\n</table>"

    def csv(self) -> str:
        """Return comma-separated lines; numbers have all their digits."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.header)
        for row in self.rows:
            writer.writerow([cell.text if cell.value is None else repr(cell.value) for cell in row])
        return buffer.getvalue()

    def latex(self) -> str:
        r"""Return a `tabular` for the package booktabs, and its caption as a comment."""
        columns = "l" + "r" * (len(self.header) - 1)
        lines = [f"% {self.title}. {self.note}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
        lines += [" & ".join(map(_escaped, self.header)) + r" \\", r"\midrule"]
        for row in self.rows:
            cells = [
                rf"\textbf{{{_escaped(cell.text)}}}" if cell.best else _escaped(cell.text)
                for cell in row
            ]
            lines.append(" & ".join(cells) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _look(place: int, *, best: bool) -> str:
    words = ["number"] * (place > 0) + ["best"] * best
    return f' class="{" ".join(words)}"' if words else ""


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
