"""What `unida study` refuses, in one line, before torch is loaded."""

from pathlib import Path
from typing import Any

import pytest

from unida.cli import main
from unida.grids.plan import check_plan, plan
from unida.grids.spec import grid_from
from unida.studies.base import content_of
from unida.studies.catalogue import STUDIES

HERE = "--source source --target target --target-labels --out out"
OFFICE = "--benchmark office31 --out out"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("source/cup", "source/pen", "target/cup"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.png").write_bytes(b"not opened")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("openess", "did you mean 'openness'?"),
        ("ablation", "--out DIR is missing"),
        ("ablation --out out", "--source DIR is missing"),
        ("openness --source source --target target --out out", "add --target-labels"),
        (f"ablation {HERE} --method ovnet", "did you mean 'ovanet'?"),
        (f"ablation {HERE} --benchmark office31", "exclude each other"),
        (f"ablation {HERE} --pairs A:D", "--pairs needs --benchmark"),
        (f"ablation {HERE} --set steps", "write NAME=VALUE"),
        (f"ablation {HERE} --set stepps=3", "did you mean 'steps'?"),
        (f"ablation {HERE} --seeds -1", "0 or more"),
        (f"ablation {HERE} --grids 3", "there is no option '--grids'"),
        (f"ablation {OFFICE}", "--root DIR is missing"),
        (f"ablation {OFFICE} --root . --pairs A:X", "no domain 'X'"),
        (f"ablation {OFFICE} --root . --setting odsa", "has no setting 'odsa'"),
        (f"pretext {HERE} --tasks cont", "Expected one of count, rotation"),
        (f"grid-size {HERE} --grids 1", "numbers from 2 to 6"),
        (f"few-classes {HERE} --classes 1", "numbers of 2 or more"),
        (f"few-classes {HERE} --classes 7", "the source has 2 classes"),
        (f"openness {HERE}", "no class of its own"),
        (f"openness {OFFICE} --root . --private 12", "only 11 classes of its own"),
        (f"openness {HERE} --methods dc", "did you mean 'dcc'?"),
        (f"private-probe {HERE}", "fewer than two classes"),
        (f"correlation {HERE} --every 0", "--every is 0"),
        (f"correlation {HERE} --answers alone", "--answers"),
    ],
)
def test_a_wrong_call_is_one_line(words: str, told: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["study", *words.split()])
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith("error: ") and said.count("\n") == 1
    assert told in said
    assert not (work / "out").exists()


@pytest.mark.parametrize("name", STUDIES)
def test_images_without_a_class_are_named_before_the_first_run(
    name: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for domain in ("target", "source"):
        loose = work / domain / "b.png"
        loose.write_bytes(b"not opened")
        with pytest.raises(SystemExit) as end:
            main(["study", name, *HERE.split()])
        said = capsys.readouterr().err
        told = f"error: {domain}/b.png: lies in no class folder; move it into the sub-folder of its class\n"
        assert (end.value.code, said) == (2, told)
        loose.unlink()
    (work / "target" / "cup" / "a.png").unlink()
    with pytest.raises(SystemExit):
        main(["study", name, *HERE.split()])
    assert "--target target holds no image" in capsys.readouterr().err
    assert not (work / "out").exists()


def test_a_folder_with_other_files_is_refused(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "out").mkdir()
    (work / "out" / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit):
        main(["study", "ablation", *HERE.split()])
    assert "already holds other files" in capsys.readouterr().err
    assert [path.name for path in (work / "out").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("preset", ["best", "paper"])
@pytest.mark.parametrize(
    ("name", "runs"),
    [
        *(("ablation", 5), ("pretext", 8), ("openness", 30), ("grid-size", 6)),
        *(("private-probe", 3), ("correlation", 3), ("seeds", 6)),
    ],
)
def test_every_row_is_one_that_adapt_takes(name: str, runs: int, preset: Any, tmp_path: Path) -> None:
    """Of a benchmark's pair: its options are checked as those of a run are."""
    study = STUDIES[name]
    options = study.Options(
        out=tmp_path / "out", benchmark="office31", root=tmp_path, pairs=("A:D",), spa_preset=preset, train="tail"
    )
    options.check()
    tasks = plan(grid_from(content_of(study, study.rows(options), options)), tmp_path / "out")
    assert len(tasks) == runs and {task.pair for task in tasks} == {"amazon:dslr"}
    assert len({str({**task.options, "out": ""}) for task in tasks}) == runs, "no two runs are the same"
    assert {task.options["regime"] for task in tasks} == {"published"}, "in the other one, next to nothing is trained"
    check_plan(tasks)


def test_a_method_that_cannot_train_a_tail_has_its_own_regime(tmp_path: Path) -> None:
    study = STUDIES["openness"]
    options = study.Options(
        out=tmp_path / "out", benchmark="office31", root=tmp_path, pairs=("A:D",), methods=("ati",), private=(11,)
    )
    tasks = plan(grid_from(content_of(study, study.rows(options), options)), tmp_path / "out")
    assert {(task.options["train"], task.options["regime"]) for task in tasks} == {("head", "auto")}
    check_plan(tasks)


@pytest.mark.parametrize(
    ("is_fast", "changed", "told"),
    [
        (True, {}, "bf16-mixed"),
        (False, {}, None),
        (True, {"train": "head"}, None),
        (True, {"engine": "slurm-script"}, None),
    ],
)
def test_runs_use_16_bits_where_that_is_faster(
    is_fast: bool, changed: dict[str, Any], told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unida.training.devices.calculates_fast_in_16_bits", lambda: is_fast)
    study = STUDIES["ablation"]
    options = study.Options(out=tmp_path / "out", benchmark="office31", root=tmp_path, **changed)
    assert content_of(study, [], options)["options"].get("precision") == told


def test_the_list_names_every_study(capsys: pytest.CaptureFixture[str]) -> None:
    main(["study"])
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in (*STUDIES, "layers", "complexity"))


def test_studies_without_runs_are_those_of_analyze(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["study", "complexity", "--method", "ovnet"])
    assert "did you mean 'ovanet'?" in capsys.readouterr().err
