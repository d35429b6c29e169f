"""Tables of a grid as Markdown, LaTeX and CSV."""

import csv
import io

from unida.grids.cells import Cell, Table
from unida.support import tables


def markdown(table: Table) -> str:
    lines = [[f"**{cell.text}**" if cell.best else cell.text for cell in line] for line in (*table.lines, *table.below)]
    return tables.markdown(table.heading, lines)


def latex(table: Table) -> str:
    """A booktabs table."""
    ours, theirs = ([[_tex(cell) for cell in line] for line in lines] for lines in (table.lines, table.below))
    body = [" & ".join(cells) + r" \\" for cells in ours]
    if theirs:
        body += [r"\midrule", *(" & ".join(cells) + r" \\" for cells in theirs)]
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{_tex(Cell(table.title))}. {_tex(Cell(table.caption))}}}",
            rf"\begin{{tabular}}{{l{'c' * (len(table.heading) - 1)}}}",
            r"\toprule",
            " & ".join(_tex(Cell(name)) for name in table.heading) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


TEX = {"\\": r"\textbackslash{}", "→": r"$\rightarrow$", "±": r"$\pm$", "−": "$-$", "×": r"$\times$"}
TEX |= {"λ": r"$\lambda$", "φ": r"$\phi$"}
TEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
TEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": r"\textendash{}", "…": r"\dots{}"}


def _tex(cell: Cell) -> str:
    text = "".join(TEX.get(letter, letter) for letter in cell.text).replace("--", "-{}-")  # or they become one dash
    return rf"\textbf{{{text}}}" if cell.best else text


def as_csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.heading)
    writer.writerows([cell.text for cell in line] for line in (*table.lines, *table.below))
    return text.getvalue().removesuffix("\n")
