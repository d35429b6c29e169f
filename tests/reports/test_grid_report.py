"""The report of a grid: every run, the table, paired differences, links to runs that have a report."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tiny_reports import make_grid

from unida.errors import UserError
from unida.reports.grid_report import write_grid_report

pytest.importorskip("plotly", reason="plotly is not installed: it is in the extra [report]")


class Cells(HTMLParser):
    """The texts of all cells, line by line, and all links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines: list[list[str]] = []
        self.links: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.lines.append([])
        if tag in ("td", "th"):
            self._inside = True
            self.lines[-1].append("")
        if tag == "a":
            self.links.append(str(dict(attrs)["href"]))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.lines[-1][-1] += data.strip()


@pytest.fixture(scope="module")
def grid(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_grid(tmp_path_factory.mktemp("grids") / "grid", run)
    (folder / "failed").mkdir()
    (folder / "failed" / "mine-_b_lost__b_-0.txt").write_text("out of <memory>\n")
    return folder


def test_the_numbers_are_the_runs(grid: Path, tmp_path: Path) -> None:
    (grid / "runs" / "mine-better-1" / "report.html").write_text("a report")
    out = tmp_path / "deep folder" / "grid.html"
    out.parent.mkdir()
    write_grid_report(grid, out)
    text = out.read_text()
    cells = Cells(text)
    lines = {line[0]: line for line in cells.lines}
    assert lines["better"][:1] == ["better"]
    assert ["base", "mine", "", "0", "50.0"] in [line[:5] for line in cells.lines]
    # 0.1 and 0.12 apart: the mean is 11.0, its standard error 1.0
    assert lines["better − base"][1:3] == ["2", "+11.0 ± 1.0"]
    found = [link for link in cells.links if not link.startswith("#")]
    assert len(found) == 1 and (out.parent / found[0].replace("%20", " ")).resolve().read_text() == "a report"
    charts = json.loads(text.split('id="charts">')[1].split("</script>")[0])
    assert [trace["y"] for trace in charts["cost"]["data"]] == [[51.0], [62.0]]
    assert "4 of 6 runs are finished" in text


def test_a_row_that_is_not_there_is_refused(grid: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no row 'bettr' \(did you mean 'better'"):
        write_grid_report(grid, tmp_path / "grid.html", against="bettr")
    assert not list(tmp_path.iterdir())


def test_a_grid_without_a_finished_run_is_refused(grid: Path, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text((grid / "grid.yaml").read_text())
    with pytest.raises(UserError, match="no finished run"):
        write_grid_report(tmp_path, tmp_path / "grid.html")
