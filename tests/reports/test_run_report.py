"""The report of a run: right numbers, nothing from outside, hostile names, images that are gone, damage."""

import base64
import gzip
import json
import logging
import os
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_reports import HOSTILE, HOSTILE_FILE, add_groups

from unida.cli import main
from unida.cli.parsing import parse
from unida.config import check, complete, config_class, fingerprint_of, load_config
from unida.data.settings import UNKNOWN
from unida.errors import UserError
from unida.evaluation.metrics import open_set_metrics
from unida.reports import charts, pictures, rundata
from unida.reports.charts import COLOURS, curves, feature_map
from unida.reports.run_report import report_after_run, write_run_report
from unida.reports.rundata import RunData, command_to_repeat, read_run
from unida.reports.thresholds import row_at, threshold_rows

pytest.importorskip("plotly", reason="plotly is not installed: it is in the extra [report]")


class Page(HTMLParser):
    """Tags with their attributes, the text outside scripts, and what each script holds by its id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts, self._script = "", dict[str, str](), None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._script = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is None:
            self.text += data
        else:
            self.scripts[self._script] = data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    copy = Path(shutil.copytree(run, tmp_path_factory.mktemp("grouped") / "run"))
    add_groups(copy)
    write_run_report(copy, copy / "report.html")
    return Page((copy / "report.html").read_text())


@pytest.fixture(scope="module")
def data(run: Path) -> RunData:
    return read_run(run, (), None)


# Numbers


def test_the_run_is_read_as_it_answered(data: RunData, run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    assert HOSTILE in data.classes and len(data.classes) == 3 and len(data) == 16
    assert data.is_right.mean() == pytest.approx(metrics["last_step"]["accuracy"])
    assert not data.notes and (data.best >= 0).all()
    assert [Path(path).name for path, _ in data.skipped] == ["broken.png"]


@pytest.mark.parametrize("threshold", [-0.1, 0.0, 0.2, 0.4, 0.45, 0.5, 0.7, 1.0])
def test_another_threshold_gives_what_evaluation_would_say(data: RunData, threshold: float) -> None:
    best, truth, score = (torch.from_numpy(values) for values in (data.best, data.truths, data.unknown_score))
    prediction = torch.where(score > threshold, 3, best)
    expected = open_set_metrics(truth, prediction, best, score, 3)
    row = row_at(data, threshold)
    assert row.unknown == int((prediction == 3).sum())
    assert (row.known_accuracy, row.unknown_accuracy, row.hos) == pytest.approx(
        (expected.known, expected.unknown, expected.hos)
    )


def test_the_runs_own_threshold_gives_the_runs_own_numbers(data: RunData, run: Path) -> None:
    own = next(row for row in threshold_rows(data) if row.is_own)
    last = json.loads((run / "metrics.json").read_text())["last_step"]
    assert (own.known_accuracy, own.unknown_accuracy, own.hos) == pytest.approx(
        (last["known"], last["unknown"], last["hos"])
    )
    assert own.unknown == int((data.answers == 3).sum())


def test_rounded_scores_stay_on_their_side(copied: Path) -> None:
    """predictions.csv has four digits: an image on the edge must not change its side."""
    metrics = json.loads((copied / "metrics.json").read_text())
    metrics["answering"] |= {"threshold": 0.50004, "chosen": "user", "found": None}
    (copied / "metrics.json").write_text(json.dumps(metrics))
    edge = ["path,label,probability,unknown_score,skipped", f"a.png,{UNKNOWN},0.5,0.5000,", "b.png,house,0.5,0.5001,"]
    classes = tuple(row["name"] for row in metrics["per_class"] if row["kind"] == "source")
    edge[2] = edge[2].replace("house", next(name for name in classes if name != HOSTILE))
    (copied / "predictions.csv").write_text("\n".join(edge) + "\n")
    read = read_run(copied, (), None)
    assert (read.unknown_score > read.threshold).tolist() == [True, False]


def test_the_command_repeats_the_run(run: Path) -> None:
    config = load_config(run / "config.yaml")
    words = shlex.split(command_to_repeat(config))
    assert words[:2] == ["unida", "adapt"]
    again = complete(check(parse(config_class("ovanet"), "unida adapt", words[2:], "")), has_gpu=False)
    assert fingerprint_of(again) == fingerprint_of(config)
    assert (again.data.source, again.data.target) == (config.data.source, config.data.target)


# The page


def test_every_section_is_there(page: Page) -> None:
    ids = {attributes.get("id") for attributes in page.all("section")}
    sections = "answers threshold gallery quality mistakes map groups words curves skipped options"
    assert ids == set(sections.split())
    assert {a["href"] for a in page.all("a")} >= {f"#{name}" for name in ids}
    assert {"answers", "scores", "confusion", "map", "losses", "evaluations"} <= json.loads(
        page.scripts["charts"]
    ).keys()


def test_nothing_comes_from_outside(page: Page) -> None:
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "data", "poster"):
            if (value := attributes.get(name)) is not None:
                assert value.startswith(("data:image/jpeg;base64,", "#")), (tag, name, value[:60])
    assert not {"link", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    assert "Content-Security-Policy" in str(page.all("meta"))


def test_hostile_names_are_only_text(page: Page) -> None:
    assert HOSTILE in page.text
    assert HOSTILE_FILE in str([attributes.get("data-path") for attributes in page.all("button")])
    assert not [attributes for _, attributes in page.tags if "onerror" in attributes]
    assert len(page.all("script")) == 5  # charts, slider, tiles, Plotly, and the page's own
    assert "boom()" not in page.scripts["script"] and "&49" not in page.text
    figures = json.loads(page.scripts["charts"])
    assert "<script" not in json.dumps(figures)  # Plotly reads tags in text


def test_pictures_have_texts_and_tables_have_captions(page: Page) -> None:
    tables = page.all("table")
    assert len(page.all("caption")) == len(tables) >= 6
    pictures_shown = [image for image in page.all("img") if "src" in image]
    assert len(pictures_shown) > 16 and all(image.get("alt") for image in pictures_shown)
    assert all(div.get("aria-label") for div in page.all("div") if div.get("class") == "chart")


def test_the_slider_has_the_numbers_of_every_image(page: Page, data: RunData) -> None:
    given = json.loads(page.scripts["slider-data"])
    scores = np.frombuffer(base64.b64decode(given["scores"]), "<f8")
    assert scores == pytest.approx(data.unknown_score)
    assert np.frombuffer(base64.b64decode(given["truths"]), "<i2").tolist() == data.truths.tolist()


def test_the_figures_are_plotlys(page: Page) -> None:
    from plotly.graph_objects import Figure

    for name, figure in json.loads(page.scripts["charts"]).items():
        assert Figure(_with_real_colours(figure)).data, name
    packed = gzip.decompress(base64.b64decode(page.scripts["plotly"]))
    assert b"Plotly" in packed


def test_losses_rates_and_other_numbers_have_axes_of_their_own(page: Page) -> None:
    figures = json.loads(page.scripts["charts"])
    names = {name: {trace.get("name") for trace in figure["data"]} for name, figure in figures.items()}
    assert {"closed", "total"} <= names["losses"]
    assert names["rates"] <= {"lr_backbone", "lr_new"} and names["rates"]
    others = [names[name] for name in figures if name.startswith("watched")]
    assert {"words_in_use"} in others and {"pas"} in others
    assert not names["losses"] & {name for some in (names["rates"], *others) for name in some}


def test_small_losses_beside_large_ones_are_drawn_logarithmically() -> None:
    lines = [{"step": 1, "a": 30.0, "b": 0.2}, {"step": 2, "a": 20.0, "b": 0.1}]
    assert curves(lines, ["a", "b"], "loss", may_be_logarithmic=True)["layout"]["yaxis"]["type"] == "log"
    assert "type" not in curves(lines, ["a"], "loss", may_be_logarithmic=True)["layout"]["yaxis"]
    negative = [*lines, {"step": 3, "a": -1.0}]
    assert "type" not in curves(negative, ["a", "b"], "loss", may_be_logarithmic=True)["layout"]["yaxis"]


def test_many_classes_differ_by_colour_or_shape_on_the_map() -> None:
    classes = 3 * COLOURS
    plane, answers = np.zeros((classes, 2)), np.arange(classes)
    names = [*map(str, range(classes)), UNKNOWN]
    drawn = feature_map(plane, np.zeros(classes, dtype=bool), answers, names, names)["data"]
    colours = [int(trace["marker"]["color"].removeprefix("@class")) % COLOURS for trace in drawn]
    shapes = [trace["marker"]["symbol"] for trace in drawn]
    assert len(set(zip(colours, shapes, strict=True))) == classes
    script = (Path(charts.__file__).parent / "templates" / "report.js").read_text()
    for scheme in ("light", "dark"):
        listed = next(line for line in script.splitlines() if line.strip().startswith(f"{scheme}: ["))
        assert listed.count("#") == COLOURS


def _with_real_colours(value: object) -> object:
    """The page's own colour names are not Plotly's."""
    if isinstance(value, dict):
        return {key: _with_real_colours(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_real_colours(part) for part in value]
    if isinstance(value, str) and value.startswith("@"):
        return "Blues" if value == "@scale" else "#123456"
    return value


# Images that are gone, damage


def test_images_that_are_gone_leave_grey_tiles(copied: Path) -> None:
    text = (copied / "predictions.csv").read_text()
    config = (copied / "config.yaml").read_text()
    for side in ("source", "target"):
        place = str(getattr(load_config(copied / "config.yaml").data, side))
        text, config = text.replace(place, "/gone/" + side), config.replace(place, "/gone/" + side)
    (copied / "predictions.csv").write_text(text)
    (copied / "config.yaml").write_text(config)
    write_run_report(copied, copied / "report.html")
    page = Page((copied / "report.html").read_text())
    ids = {attributes.get("id") for attributes in page.all("section")}
    assert {"answers", "quality", "gallery"} <= ids and not ids & {"map", "words"}
    assert "source's images cannot be shown" in page.text and "best classes are not known" in page.text
    assert len([image for image in page.all("img") if "src" in image]) >= 16
    assert not json.loads(page.scripts["slider-data"])["best"]


def test_a_grey_tile_is_grey_and_a_picture_is_not(tmp_path: Path) -> None:
    Image.new("RGB", (60, 20), "red").save(tmp_path / "red.png")
    there = pictures.small_picture(str(tmp_path / "red.png"), 30)
    gone = pictures.small_picture(str(tmp_path / "gone.png"), 30)
    assert there.size == (30, 10) and there.getpixel((5, 5)) == (255, 0, 0)
    assert gone.size == (30, 30) and gone.getpixel((29, 29)) == pictures.GREY


def test_pictures_of_noise_stay_below_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise makes the largest JPEGs: with fewer bytes allowed, pictures become smaller."""
    for number in range(6):
        noise = np.random.default_rng(number).integers(0, 256, (200, 200, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{number}.png")
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    full = pictures.thumbnails([*paths, paths[0]])
    assert len(full) == 6 and full[paths[0]].width == 176
    monkeypatch.setattr(pictures, "MOST_BYTES", 40_000)
    small = pictures.thumbnails(paths)
    assert sum(len(one.uri) for one in small.values()) <= 40_000 and small[paths[0]].width < 176


def test_without_a_report_the_run_says_so_in_one_line(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    (copied / "predictions.csv").write_text("nothing\n")
    with caplog.at_level(logging.INFO):
        report_after_run(copied)
    assert not (copied / "report.html").exists()
    lines = [record.getMessage() for record in caplog.records if "report.html" in record.getMessage()]
    assert len(lines) == 1 and "predictions.csv" in lines[0] and "\n" not in lines[0]
    assert "there is no report.html" in (copied / "log.txt").read_text()


def test_without_plotly_the_line_names_the_extra(
    copied: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "plotly" else find(name))
    report_after_run(copied)
    assert "unida[report]" in caplog.text and not (copied / "report.html").exists()


def test_killed_while_writing_the_old_report_stays(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copied / "report.html").write_text("old")

    def killed(*paths: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_run_report(copied, copied / "report.html")
    assert (copied / "report.html").read_text() == "old" and not list(copied.glob("*.tmp"))


def test_a_newer_report_is_not_written_again(copied: Path) -> None:
    (copied / "report.html").write_text("mine")
    report_after_run(copied)
    assert (copied / "report.html").read_text() == "mine"


def test_adapt_ends_with_a_report(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr("unida.reports.run_report.report_after_run", asked.append)
    main(["adapt", "--out", str(copied), "--resume"])
    assert asked == [copied]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "not the folder of a run"),
        (["copy", "--runs"], "--runs is for a grid"),
        (["copy", "--against", "a"], "--against is for a grid"),
        (["copy", "--out", "."], "--out . cannot be written"),
    ],
)
def test_wrong_words_are_refused(
    copied: Path, words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(copied.parent)
    with pytest.raises(SystemExit) as stop:
        main(["report", *words])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and told in error and error.count("\n") == 1


def test_groups_that_are_damaged_are_left_out(copied: Path) -> None:
    (copied / "groups.csv").write_text("path,group,sureness\na.png,one,0.5\n")
    assert rundata.read_groups(copied / "groups.csv") == {}
    (copied / "groups.csv").write_text("path,group,sureness\na.png,1,0.5\nb.png,-1,0.1\nc.png,2,nan\n")
    assert rundata.read_groups(copied / "groups.csv") == {"a.png": (1, 0.5)}


def test_predictions_of_another_model_are_refused(copied: Path) -> None:
    text = (copied / "predictions.csv").read_text()
    (copied / "predictions.csv").write_text(text + "z.png,zebra,0.5,0.1,\n")
    with pytest.raises(UserError, match="zebra"):
        read_run(copied, (), None)
