"""`--tap auto` through the commands: chosen once, told, kept, and then a run like any other."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bad_input import assert_refuses
from tiny_runs import adapt_arguments, lines_of, model_hash, run_here, run_two

from unida.analysis import auto_tap
from unida.analysis.auto_tap import Curves
from unida.config import load_config
from unida.data.glyphs import GlyphFolders
from unida.errors import UserError
from unida.runs import pipeline
from unida.support.processes import told_by_main_process

TAIL = {"train": "tail", "views": 2, "steps": 4}
TAPS = ["stem", "layer1", "layer2", "layer3", "layer4"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("auto")


def arguments(glyphs: GlyphFolders, place: Path, name: str, **changes: Any) -> list[str]:
    folders = {"source": glyphs.source, "target": glyphs.target, "out": place / name, "cache": place / "cache"}
    return adapt_arguments(**{**folders, **TAIL, **changes})


@pytest.fixture(scope="module")
def curves() -> list[Curves]:
    """What `chosen` measured."""
    return []


@pytest.fixture(scope="module")
def chosen(glyphs: GlyphFolders, place: Path, curves: list[Curves]) -> Path:
    """The run that measures; that takes seconds."""
    measure = auto_tap.measure_curves

    def noted(*given: Any) -> Curves:
        curves.append(measure(*given))
        return curves[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto_tap, "measure_curves", noted)
        assert run_here(arguments(glyphs, place, "auto", tap="auto")) == 0
    assert len(curves) == 1
    return place / "auto"


@pytest.fixture
def measured(chosen: Path, curves: list[Curves], monkeypatch: pytest.MonkeyPatch) -> list[Curves]:
    """What was measured once is what every measurement finds; those that were asked for since."""
    asked: list[Curves] = []

    def again(*given: Any) -> Curves:
        asked.append(curves[0])
        return curves[0]

    monkeypatch.setattr(auto_tap, "measure_curves", again)
    return asked


def refuse(*arguments: Any) -> Any:
    pytest.fail("a tap was chosen anew")


def test_the_choice_is_told_in_one_line_and_kept(chosen: Path) -> None:
    tap = load_config(chosen / "config.yaml").model.tap
    assert tap in TAPS[:-1]
    told = [line for line in (chosen / "log.txt").read_text().splitlines() if "chosen by" in line]
    assert len(told) == 1
    assert f"tap: {tap}, chosen by source NTR (0." in told[0] and "of 16 + 20 images" in told[0]


def test_a_run_that_chose_its_tap_is_one_that_was_told_it(chosen: Path, glyphs: GlyphFolders, place: Path) -> None:
    tap = load_config(chosen / "config.yaml").model.tap
    assert run_here(arguments(glyphs, place, "told", tap=tap)) == 0
    assert model_hash(chosen) == model_hash(place / "told")
    assert lines_of(chosen) == lines_of(place / "told")


def test_labels_of_the_target_do_not_steer_the_choice(
    chosen: Path, glyphs: GlyphFolders, place: Path, tmp_path: Path
) -> None:
    """The same pictures without any folder, and no leave to look at labels."""
    for number, picture in enumerate(sorted(glyphs.target.rglob("*.png"))):
        (tmp_path / f"{number}.png").write_bytes(picture.read_bytes())
    assert run_here(arguments(glyphs, place, "flat", tap="auto", target=tmp_path, target_labels=None)) == 0
    of_both = [(run / "log.txt").read_text().partition("tap: ")[2].splitlines()[0] for run in (chosen, place / "flat")]
    assert of_both[0] == of_both[1]


def test_a_resumed_run_does_not_choose_anew(
    glyphs: GlyphFolders, place: Path, chosen: Path, measured: list[Curves], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = place / "resumed"
    assert run_here(arguments(glyphs, place, run.name, tap="auto")) == 0
    assert len(measured) == 1
    monkeypatch.setattr(pipeline, "choose_taps", refuse)
    for again in ([], ["--tap", "auto"]):
        (run / "metrics.json").unlink()  # as if it had been killed just before the end
        assert run_here(["adapt", "--out", str(run), "--resume", *again]) == 0
        assert model_hash(run) == model_hash(chosen)


def test_a_run_without_a_choice_is_not_resumed_with_one(
    glyphs: GlyphFolders, chosen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = chosen.parent / "default"
    assert run_here(arguments(glyphs, chosen.parent, "default")) == 0
    assert run_here(["adapt", "--out", str(run), "--resume", "--tap", "auto"]) == 2
    assert "--tap is auto, but the run" in capsys.readouterr().err


def test_a_run_that_is_stopped_while_it_measures_chooses_when_it_is_resumed(
    glyphs: GlyphFolders,
    place: Path,
    chosen: Path,
    measured: list[Curves],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    run = place / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "choose_taps", stop)
        assert run_here(arguments(glyphs, place, run.name, tap="auto")) == 130
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == f"interrupted. Continue with: unida adapt --out {run} --resume"
    assert load_config(run / "config.yaml").model.tap == "auto"
    assert run_here(["adapt", "--out", str(run), "--resume"]) == 0
    assert len(measured) == 1
    assert (run / "config.yaml").read_text() == (chosen / "config.yaml").read_text().replace(str(chosen), str(run))
    assert model_hash(run) == model_hash(chosen)


@pytest.mark.usefixtures("measured")
def test_words_are_read_behind_what_is_frozen(glyphs: GlyphFolders, place: Path) -> None:
    small = {"spa": True, "spa.vocabulary": 8, "spa.tap": "auto", "tap": "layer2"}
    assert run_here(arguments(glyphs, place, "words", **small)) == 0
    config = load_config(place / "words" / "config.yaml")
    assert (config.model.tap, config.spa.spa_tap in TAPS[3:]) == ("layer2", True)


@pytest.mark.usefixtures("measured")
def test_words_are_read_anywhere_if_all_is_frozen(glyphs: GlyphFolders, place: Path) -> None:
    small = {"train": "head", "views": None, "spa": True, "spa.vocabulary": 8, "spa.tap": "auto"}
    assert run_here(arguments(glyphs, place, "frozen words", **small)) == 0
    assert load_config(place / "frozen words" / "config.yaml").spa.spa_tap in TAPS


def test_check_chooses_as_the_run_will(
    chosen: Path, glyphs: GlyphFolders, place: Path, measured: list[Curves], cli: Any
) -> None:
    tap = load_config(chosen / "config.yaml").model.tap
    answer = cli(["check", *arguments(glyphs, place, "none", tap="auto")[1:]])
    assert answer.code == 0
    assert f"frozen up to {tap}," in answer.out
    assert f"tap: {tap}, chosen by" in answer.err and len(measured) == 1
    assert not (place / "none").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": "all", "tap": "auto"}, "--tap has no effect with --train all"),
        ({"train": "head", "tap": "auto"}, "--tap has no effect with --train head"),
        ({"spa.tap": "auto"}, "--spa.tap has no effect without --spa"),
    ],
)
def test_a_choice_without_an_effect_is_refused(
    glyphs: GlyphFolders, tmp_path: Path, cli: Any, changes: dict[str, Any], message: str
) -> None:
    assert_refuses(cli, arguments(glyphs, tmp_path, "run", **changes), tmp_path, start=message)


def test_too_few_classes_are_told_and_leave_nothing(glyphs: GlyphFolders, tmp_path: Path, cli: Any) -> None:
    for name in ("star", "house"):
        (tmp_path / "two" / name).mkdir(parents=True)
        for picture in (glyphs.source / name).iterdir():
            (tmp_path / "two" / name / picture.name).write_bytes(picture.read_bytes())
    answer = cli(arguments(glyphs, tmp_path, "run", tap="auto", source=tmp_path / "two"))
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("error: --tap auto: the source has 2 classes")
    assert answer.err.rstrip().endswith("name a tap instead")
    assert not (tmp_path / "run").exists()


def test_other_processes_are_told_and_do_not_work() -> None:
    told: Any = SimpleNamespace(world_size=2, is_global_zero=False, broadcast=lambda mine: (("layer2", None), None))
    assert told_by_main_process(told, refuse) == ("layer2", None)
    told.broadcast = lambda mine: (None, "the main one's error")
    with pytest.raises(UserError, match="the main one's error"):
        told_by_main_process(told, refuse)


def test_an_error_of_the_main_process_is_passed_on_before_it_is_raised() -> None:
    sent: list[Any] = []

    def broadcast(mine: Any) -> Any:
        sent.append(mine)
        return mine

    def fail() -> str:
        raise UserError("too few images")

    main: Any = SimpleNamespace(world_size=2, is_global_zero=True, broadcast=broadcast)
    with pytest.raises(UserError, match="too few images"):
        told_by_main_process(main, fail)
    assert sent == [(None, "too few images")]
    assert told_by_main_process(main, lambda: "layer1") == "layer1"


@pytest.mark.usefixtures("measured")
def test_two_processes_choose_and_measure_as_one(glyphs: GlyphFolders, place: Path, chosen: Path) -> None:
    """With --track too: the main process measures while the other waits."""
    changes = {"tap": "auto", "devices": 2, "eval_every": 2, "track": "ntr,dis"}
    code, printed = run_two(arguments(glyphs, place, "two", **changes))
    assert code == 0, printed
    assert load_config(place / "two" / "config.yaml").model.tap == load_config(chosen / "config.yaml").model.tap
    assert printed.count("chosen by source NTR") == 1
    evaluations = [line for line in lines_of(place / "two") if line["kind"] == "evaluation"]
    assert [line["step"] for line in evaluations] == [2]
    assert all(0 <= evaluations[0][name] <= 1 for name in ("ntr", "dis"))
