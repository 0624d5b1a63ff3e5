"""The frame of the report: one HTML page that needs no other file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --soft: #4a4a4a; --line: #c8c8c8;
  --link: #0b4f8a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #15171a; --soft: #b0b0b0;
  --line: #44484d; --link: #8cc4f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
h1 { font-size: 1rem; font-weight: 400; margin: 0; color: var(--soft); }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0 0 0.25rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.25rem 0 0.25rem; }
p { margin: 0.4rem 0; max-width: 52rem; }
a { color: var(--link); }
section { border-top: 1px solid var(--line); margin-top: 1.25rem; padding-top: 1rem; }
.meta, figcaption { color: var(--soft); font-size: 0.9rem; overflow-wrap: anywhere; }
figure { margin: 1rem 0; max-width: 34rem; }
.figures { display: grid; gap: 0 2rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.25rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: 0.3rem 0.7rem 0.3rem 0; text-align: left;
  white-space: nowrap; }
td.number, th.number { text-align: right; padding-right: 0.9rem; }
.scroll td:first-child, .scroll th:first-child { position: sticky; left: 0;
  background: var(--paper); }
td.best { font-weight: 700; }
summary { cursor: pointer; margin: 0.6rem 0 0.25rem; }
code { font: 0.9em ui-monospace, "Liberation Mono", Menlo, Consolas, monospace; }
.agents { width: 100%; margin: 0.75rem 0; font-size: 0.9rem; line-height: 1.35; }
.agents td, .agents th { white-space: normal; vertical-align: middle; }
.agents th { overflow-wrap: anywhere; }
.agents tr:first-child th { color: var(--soft); font-weight: 400; }
.key { display: inline-block; width: 0.7rem; height: 0.7rem; margin-right: 0.4rem;
  background: var(--own); }
.small { display: block; width: 9.4rem; height: 1.9rem; fill: var(--own); stroke: none; }
.small rect { opacity: 0.45; }
.small path { stroke: currentColor; stroke-width: 2; }
.small .run { stroke: var(--own); stroke-width: 1; opacity: 0.6; }
.small .half { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; }
.small polyline { fill: none; stroke: var(--own); stroke-width: 2; }
.agents th[scope="row"] { min-width: 8rem; }
.agents .kind { color: var(--soft); padding-top: 0.6rem; }
.strip { display: flex; flex-wrap: wrap; gap: 2px; max-width: 15rem; }
.strip i { min-width: 1.9rem; padding: 0.15rem 0.2rem; text-align: center; font-style: normal;
  background-color: color-mix(in srgb, #D55E00 calc(var(--much) * 0.55), transparent);
  border: 1px solid var(--line); }
.strip .alike { background-image: repeating-linear-gradient(135deg, transparent 0 4px,
  color-mix(in srgb, #0072B2 35%, transparent) 4px 6px); }
@media (max-width: 60rem) {
  .agents tr:first-child { display: none; }
  .agents, .agents tbody, .agents tr, .agents th, .agents td { display: block; width: auto; }
  .agents tr { border-bottom: 1px solid var(--line); padding: 0.5rem 0; }
  .agents th, .agents td { border: 0; padding: 0.1rem 0; }
  .agents td { display: grid; grid-template-columns: 7.5rem 1fr; gap: 0.5rem; }
  .agents td::before { content: attr(data-head); color: var(--soft); }
  .scroll { background: linear-gradient(to left, var(--line), transparent 1.5rem) no-repeat; }
}
@media print { body { max-width: none; } figure, tr { break-inside: avoid; }
  .scroll { overflow: visible; } td, th { white-space: normal; overflow-wrap: anywhere; }
  details::details-content { content-visibility: visible; height: auto; } }
"""

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<header>
<h1>$title</h1>
</header>
<main>
$answers
$notes
<section id="problems">
<h2>Problems</h2>
$sections
</section>
$unfinished
<details id="reading">
<summary>How to read this, and the files</summary>
<p>Runs of one problem have the same id, variant, system and budget; which fidelity an agent asks
for is its own affair, and each runs once per seed. $rule A trial counts from the
moment it is paid for. Test results are those of the incumbent at the end of the run.</p>
<p>$files</p>
</details>
<p class="meta">$meta</p>
</main>
</body>
</html>
""")

ANSWER = Template("""<section id="$anchor">
<h2>$verdict</h2>
$rows
<p class="meta">$legend</p>
<details>
<summary>How sure, tests, ranks and curves: $heading</summary>
$words
<div class="figures">
$figures
</div>
$body
</details>
</section>
""")

FIGURE = Template("""<figure id="$anchor">
$svg
<figcaption><b>$title.</b> $caption</figcaption>
</figure>
""")

TABLE = Template("""<h3>$title</h3>
<p class="meta">$note</p>
<div class="scroll">
$table
</div>
""")

SECTION = Template("""<details id="$anchor">
<summary><b>$heading</b> <span class="meta">$short</span></summary>
<p class="meta">$settings</p>
<div class="figures">
$figures
</div>
<h3>Final results</h3>
<p class="meta">$note</p>
<div class="scroll">
$results
</div>
$best
</details>
""")

UNFINISHED = Template("""<section id="unfinished">
<h2>What did not finish</h2>
<p>These runs left no record, so nothing above knows of them. An agent that fails where it would do
badly looks better than it is.</p>
<div class="scroll">
$table
</div>
</section>
""")

BEST = Template("""<details>
<summary>Best configuration</summary>
<p>$winner</p>
<div class="scroll">
$configuration
</div>
</details>
""")


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One entry: what is shown, and the number behind it, for CSV."""

    text: str
    value: float | int | None = None
    best: bool = False


def number_cell(value: float | None, form: str) -> Cell:
    """Return a number in a form as an entry, or a dash for none."""
    return Cell("–") if value is None else Cell(format(value, form), value)


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header; the first column is text, the others are numbers."""

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
