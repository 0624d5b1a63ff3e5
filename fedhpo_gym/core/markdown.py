"""Tables in Markdown, for the command line, the pages and the reports of studies."""

from collections.abc import Iterable, Sequence


def markdown_row(cells: Iterable[object]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def markdown_table(
    heads: Sequence[str], rows: Iterable[Iterable[object]], *, numbers: bool = False
) -> str:
    """Return a table without a line end behind it.

    Args:
        heads: titles of the columns.
        rows: cells of each line.
        numbers: align all columns but the first to the right.
    """
    first, *others = ["---"] * len(heads)
    rule = [first, *(f"{dashes}:" if numbers else dashes for dashes in others)]
    return "\n".join(map(markdown_row, [heads, rule, *rows]))
