"""The frame of the report: one HTML page that needs no other file."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

_FOLDER = Path(__file__).parent / "templates"
STYLE = (_FOLDER / "style.css").read_text(encoding="utf-8")
PAGE, ANSWER, FIGURE, TABLE, SECTION, UNFINISHED, BEST = (
    Template((_FOLDER / f"{name}.html").read_text(encoding="utf-8"))
    for name in ("page", "answer", "figure", "table", "section", "unfinished", "best")
)


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One entry: its text, and the number behind it for CSV."""

    text: str
    value: float | int | None = None
    best: bool = False


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as comma-separated lines, in which no spreadsheet finds a formula."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(map(_escape_formula, row) for row in rows)
    return buffer.getvalue()


def _escape_formula(cell: object) -> object:
    """Return a cell, with an apostrophe before text that a spreadsheet would compute."""
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        return str(float(cell)) and cell
    except ValueError:
        return f"'{cell}"


def number_cell(value: float | None, form: str) -> Cell:
    """Return a number in a form as an entry, or a dash for none."""
    return Cell("–") if value is None else Cell(format(value, form), value)


@dataclass(frozen=True)
class ReportTable:
    """Rows of cells under a header; the first column is text, the others are numbers."""

    name: str
    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @classmethod
    def of_values(
        cls,
        name: str,
        title: str,
        note: str,
        header: Sequence[str],
        rows: Iterable[Sequence[str | float]],
    ) -> "ReportTable":
        """Make a table of plain values, numbers with all their digits."""
        cells = [[Cell(v) if isinstance(v, str) else Cell(repr(v), v) for v in row] for row in rows]
        return cls(name, title, note, header, cells)

    def html(self) -> str:
        """Return a `<table>` element."""
        head = "".join(
            f'<th scope="col"{_cell_class(index, best=False)}>{escape(title)}</th>'
            for index, title in enumerate(self.header)
        )
        lines = [f"<tr>{head}</tr>"]
        for row in self.rows:
            cells = (
                f"<td{_cell_class(index, best=cell.best)}>{escape(cell.text)}</td>"
                for index, cell in enumerate(row)
            )
            lines.append(f"<tr>{''.join(cells)}</tr>")
        return "<table>\n" + "\n".join(lines) + "\n</table>"

    def csv(self) -> str:
        """Return comma-separated lines; numbers have all their digits."""
        cells = ([c.text if c.value is None else repr(c.value) for c in row] for row in self.rows)
        return csv_text([self.header, *cells])

    def latex(self) -> str:
        r"""Return a `tabular` for the package booktabs, and its caption as a comment."""
        columns = "l" + "r" * (len(self.header) - 1)
        lines = [f"% {self.title}. {self.note}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
        lines += [" & ".join(map(_escape_latex, self.header)) + r" \\", r"\midrule"]
        for row in self.rows:
            cells = [
                rf"\textbf{{{_escape_latex(cell.text)}}}" if cell.best else _escape_latex(cell.text)
                for cell in row
            ]
            lines.append(" & ".join(cells) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _cell_class(index: int, *, best: bool) -> str:
    classes = ["number"] * (index > 0) + ["best"] * best
    return f' class="{" ".join(classes)}"' if classes else ""


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
