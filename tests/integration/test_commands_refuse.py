"""What users get wrong with a run that is there, and with the commands beside `adapt`: one line, nothing touched."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bad_input import AdaptWords, Options, assert_refuses, contents, picture

from unida.config import config_from_options, load_config, save_config
from unida.data.glyphs import GlyphFolders

# ---- adapt into the folder of a run ----------------------------------------------------------------------------------


@pytest.fixture
def same_words(copied_run: Path, glyphs: GlyphFolders, adapt_words: AdaptWords) -> AdaptWords:
    """`adapt` as it was called for the finished run, with some options changed."""

    def words(changes: Options) -> list[str]:
        folders = {"--source": glyphs.source, "--target": glyphs.target, "--out": copied_run}
        return adapt_words({**folders, "--target-labels": True, "--eval-every": 2, **changes})

    return words


RESUME: list[tuple[Options, tuple[str, ...]]] = [
    ({}, ("--out", "already holds a run", "--resume", "another folder")),
    ({"--resume": True, "--steps": 9}, ("--steps is 9", "started with 3", "leave it out", "another --out")),
    ({"--resume": True, "--seed": 1}, ("--seed is 1", "started with 0", "leave it out")),
    ({"--resume": True, "--batch-size": 36}, ("--batch-size is 36", "started with 4", "leave it out")),
    ({"--resume": True, "--method": "source-only"}, ("--method is source-only", "started with ovanet")),
    ({"--resume": True, "--entropy-weight": 0.5}, ("--entropy-weight is 0.5", "started with 0.1")),
    ({"--resume": True, "--source": "elsewhere"}, ("--source is", "elsewhere", "was started with", "leave it out")),
]


@pytest.mark.parametrize(("changes", "parts"), RESUME, ids=lambda value: " ".join(map(str, value)) or "no resume")
def test_a_run_is_neither_overwritten_nor_resumed_as_another(
    changes: Options, parts: tuple[str, ...], work: Path, same_words: AdaptWords, cli: Any
) -> None:
    assert_refuses(cli, same_words(changes), work, parts)


def test_a_run_resumed_with_its_own_options_ends_as_it_was(copied_run: Path, same_words: AdaptWords, cli: Any) -> None:
    before = contents(copied_run)
    answer = cli(same_words({"--resume": True}))
    assert answer.code == 0, answer.err
    after = contents(copied_run)
    for name in ("predictions.csv", "checkpoint/model.safetensors", "metrics.jsonl"):
        assert after[name] == before[name]


# ---- other commands --------------------------------------------------------------------------------------------------


def not_finished(work: Path) -> None:
    (work / "run/metrics.json").unlink()  # what a run writes last


def damaged_yaml(work: Path) -> None:
    (work / "run/config.yaml").write_text("data: [")


def other_yaml(work: Path) -> None:
    (work / "run/config.yaml").write_text("version: 3\n")


def half_a_model(work: Path) -> None:
    model = work / "run/checkpoint/model.safetensors"
    model.write_bytes(model.read_bytes()[:5000])


def run_of_dcc(work: Path, **changes: Any) -> None:
    """The run's config says that DCC made it."""
    data = vars(load_config(work / "run/config.yaml").data)
    save_config(config_from_options({**data, "method": "dcc", **changes}), work / "run/config.yaml")


def unlabelled_run_of_dcc(work: Path) -> None:
    run_of_dcc(work, target_labels=False)


def half_a_checkpoint(work: Path) -> None:
    run_of_dcc(work)
    checkpoint = work / "run/checkpoint/resume.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:5000])


def flipped_bit(work: Path) -> None:
    run_of_dcc(work)
    checkpoint = work / "run/checkpoint/resume.safetensors"
    content = bytearray(checkpoint.read_bytes())
    content[-1] ^= 1
    checkpoint.write_bytes(content)


def flat_folder(work: Path) -> None:
    picture(work / "flat" / "one.png", 1)


def empty_folder(work: Path) -> None:
    (work / "nothing").mkdir()


def case(name: str, words: str, *parts: str, after: Callable[[Path], None] = lambda work: None) -> Any:
    """A command in a folder with source/, target/ and run/, after something was done to it; parts of the line."""
    return pytest.param(words.split(), parts, after, id=name)


PREDICT = "predict run target --csv answers.csv"
NOT_FINISHED = ("run in run is not finished", "unida adapt --out run --resume")
NO_CONFIG = "run/config.yaml is not the config of a run"
CLUSTERS = "analyze clusters run"


@pytest.mark.parametrize(
    ("words", "parts", "after"),
    [
        case("no_run", "predict source target --csv answers.csv", "source is not the folder of a run", "config.yaml"),
        case("no_folder", "predict gone target --csv answers.csv", "gone is not the folder of a run", "config.yaml"),
        case("evaluate_no_run", "evaluate source", "source is not the folder of a run", "config.yaml"),
        case("unfinished", PREDICT, *NOT_FINISHED, after=not_finished),
        case("evaluate_unfinished", "evaluate run", *NOT_FINISHED, after=not_finished),
        case("damaged_config", "evaluate run", NO_CONFIG, after=damaged_yaml),
        case("config_of_something_else", "evaluate run", NO_CONFIG, "training", after=other_yaml),
        case("damaged_model", PREDICT, "model.safetensors", "cannot be read", after=half_a_model),
        case(
            "csv_below_a_file",
            "predict run target --csv run/log.txt/answers.csv",
            "--csv run/log.txt/answers.csv cannot be written",
            "choose another file",
        ),
        case(
            "csv_is_a_folder",
            "predict run target --csv target",
            "--csv target cannot be written",
            "choose another file",
        ),
        case("csv_is_here", "predict run target --csv .", "--csv . cannot be written", "choose another file"),
        case("no_images_folder", "predict run gone --csv answers.csv", "gone: no such folder", "check the path"),
        case("nowhere_to_write", "predict run target", "--csv FILE is missing", "unida predict --help"),
        case("watch_without_csv", "predict run --watch target", "--watch needs --csv FILE"),
        case("watch_and_more", "predict run source --watch target --csv a.csv", "takes no other pictures (source)"),
        case("move_and_copy", "predict run target --move-to a --copy-to b", "exclude each other"),
        case("sorts_into_itself", "predict run target --move-to target/x", "target/x lies inside target"),
        case(
            "record_of_moves",
            "predict run target --csv run/predictions.csv --move-to sorted",
            "--csv run/predictions.csv is there",
            "choose another name",
        ),
        case(
            "record_of_moves_as_json",
            "predict run target --json run/metrics.json --move-to sorted",
            "--json run/metrics.json is there",
        ),
        case("export_of_nothing", "export run", "pass --onnx FILE.onnx or --torch-export FILE.pt2"),
        case("export_no_run", "export source --torch-export a.pt2", "source is not the folder of a run"),
        case("export_suffix", "export run --torch-export a.bin", "--torch-export a.bin", "end in .pt2"),
        case("missing_arguments", "predict run", "DIR", "--csv FILE", "unida predict --help"),
        case(
            "flat_evaluation",
            "evaluate run --target flat",
            "one.png lies in no class folder of flat",
            "move it into one, or name a folder that has one sub-folder per class with --target DIR",
            after=flat_folder,
        ),
        case(
            "json_below_a_file",
            "evaluate run --json run/log.txt/metrics.json",
            "--json run/log.txt/metrics.json cannot be written",
            "choose another file",
        ),
        case(
            "sheet_below_a_file",
            "data show source --out run/log.txt/sheet.png",
            "--out run/log.txt/sheet.png cannot be written",
            "choose another file",
        ),
        case("sheet_of_nothing", "data show nothing", "nothing holds no image", after=empty_folder),
        case("verify_unknown", "data verify ofice31 source", "'ofice31'", "did you mean 'office31'?"),
        case("verify_nowhere", "data verify office31 gone", "gone is not a folder", "Office-31"),
        case("clusters_no_run", "analyze clusters source", "source holds no finished run", "give the folder of a run"),
        case("clusters_no_folder", "analyze clusters gone", "gone holds no finished run", "give the folder of a run"),
        case("clusters_missing", "analyze clusters", "RUN is missing", "unida analyze clusters --help"),
        case("clusters_unfinished", CLUSTERS, *NOT_FINISHED, after=not_finished),
        case("clusters_not_dcc", CLUSTERS, "run is not a run of DCC", "make a run with --method dcc"),
        case(
            "clusters_no_labels",
            CLUSTERS,
            "the target of run has no labels",
            "make the run with --target-labels",
            after=unlabelled_run_of_dcc,
        ),
        case("clusters_of_another_run", CLUSTERS, "resume.safetensors holds no clusters", after=run_of_dcc),
        case("clusters_half_a_file", CLUSTERS, "resume.safetensors", "cannot be read", after=half_a_checkpoint),
        case("clusters_damaged", CLUSTERS, "resume.safetensors is damaged", "train again", after=flipped_bit),
        case("clusters_damaged_config", CLUSTERS, NO_CONFIG, after=damaged_yaml),
        case("no_such_verb", "adpat --source source", "'unida adpat'", "did you mean 'adapt'?"),
        case("no_such_data_verb", "data lsit", "'unida data lsit'", "did you mean 'list'?"),
    ],
)
def test_other_commands_refuse(
    words: list[str], parts: tuple[str, ...], after: Callable[[Path], None], copied_run: Path, cli: Any
) -> None:
    after(copied_run.parent)
    assert_refuses(cli, words, copied_run.parent, parts)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["predict", "run", "target"], "--csv"),
        (["evaluate", "run"], "--json"),
        (["analyze", "clusters", "run"], "--csv"),
    ],
)
@pytest.mark.parametrize("place", ["run/log.txt/answers", "target", "closed/answers", "closed/deep/answers"])
def test_a_file_that_cannot_be_written_is_found_before_the_work(
    command: list[str], option: str, place: str, copied_run: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the images were looked at")

    monkeypatch.setattr("unida.api.Run.predict", work)
    monkeypatch.setattr("unida.api.Run.evaluate", work)
    monkeypatch.setattr("unida.analysis.clusters.read_clusterings", work)
    (copied_run.parent / "closed").mkdir(mode=0o555)
    if place.startswith("closed") and os.access("closed", os.W_OK):
        pytest.skip("root may write anywhere")
    parts = (f"{option} {place} cannot be written", "choose another file")
    assert_refuses(cli, [*command, option, place], copied_run.parent, parts)


@pytest.mark.parametrize(
    ("environment", "speaks"),
    [
        ({}, True),
        ({"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "1"}, True),  # torchrun on two machines, by SLURM
        ({"RANK": "2", "LOCAL_RANK": "0", "SLURM_PROCID": "0"}, False),
        ({"LOCAL_RANK": "1"}, False),  # started by Fabric
        ({"LOCAL_RANK": "1", "SLURM_PROCID": "0"}, False),
        ({"SLURM_PROCID": "0"}, True),
        ({"SLURM_PROCID": "3"}, False),
    ],
    ids=str,
)
def test_of_several_processes_one_speaks(
    environment: dict[str, str], speaks: bool, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    answer = cli(["adpat"])
    assert answer.code == 2
    assert answer.err.startswith("error: there is no command 'unida adpat'") is speaks
    assert speaks or answer.err == ""
