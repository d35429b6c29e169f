"""Grids of tiny runs: what they leave, what survives a kill, and what they refuse."""

import contextlib
import csv
import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
import yaml
from conftest import Cli
from safetensors import SafetensorError
from tiny_runs import ENVIRONMENT, Forked, last_step, run_here

import unida
from unida.data.glyphs import GlyphFolders
from unida.errors import UserError
from unida.grids import local, start, worker
from unida.grids.engine import Ended, Event, Started
from unida.grids.local import LocalEngine
from unida.grids.plan import Task, plan
from unida.grids.results import COST
from unida.grids.spec import grid_from
from unida.grids.status import status_lines
from unida.grids.worker import Outcome, carry_out
from unida.runs import pipeline
from unida.support.signals import Interrupted

Spec = dict[str, Any]


@pytest.fixture(scope="module")
def spec(glyphs: GlyphFolders, tiny: dict[str, str]) -> Spec:
    options = {name.removeprefix("--"): yaml.safe_load(value) for name, value in tiny.items()}
    return {
        "folders": {"glyphs": {"source": glyphs.source, "target": glyphs.target, "target_labels": True}},
        "options": {**options, "checkpoint-every": 2, "log-every": 1},
        "rows": {"source-only": {"method": "source-only"}, "ovanet": {"method": "ovanet", "steps": 12}},
        "seeds": [0, 1],
    }


def write_spec(spec: Spec, path: Path) -> Path:
    folders = {
        name: {k: str(v) if k != "target_labels" else v for k, v in both.items()}
        for name, both in spec["folders"].items()
    }
    path.write_text(yaml.safe_dump({**spec, "folders": folders}, sort_keys=False))
    return path


class Here:
    """An engine that carries runs out in this process, one after another."""

    workers = 1

    def __init__(self, logs: Path, answer: Callable[[Task], Outcome] | None = None) -> None:
        self.logs, self.answer, self.seen = logs, answer, list[str]()

    def run(self, tasks: Sequence[Task]) -> Generator[Event, None, None]:
        for task in tasks:
            self.seen.append(task.name)
            yield Started(task, "here")
            yield Ended(task, self.answer(task) if self.answer else carry_out(task, self.logs / f"{task.name}.txt"))


@pytest.fixture(scope="module")
def calm(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The grid, undisturbed, one run after another in this process. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("calm")
    path = write_spec({**spec, "rows": {**spec["rows"], "diverges": {"lr": 1e12, "steps": 12}}}, folder / "spec.yaml")
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setattr(start, "_engine", lambda *given: Here(folder / "out" / "logs"))
        code = run_here(["grid", str(path), "--out", str(folder / "out"), "--no-estimate"])
    assert code == 1, said.getvalue()  # one row fails
    assert "2 run(s) failed" in said.getvalue() and "diverges glyphs" in said.getvalue()
    return folder / "out"


def results(out: Path, *without: str) -> list[dict[str, str]]:
    """The lines of results.csv, times apart."""
    with (out / "results.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    return [{k: v for k, v in line.items() if k not in COST} for line in lines if line["row"] not in without]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Here:
    engine = Here(tmp_path / "logs")
    monkeypatch.setattr(start, "_engine", lambda *given: engine)
    return engine


# What a grid leaves


def test_every_run_is_a_run_folder_with_its_line(calm: Path, spec: Spec) -> None:
    lines = results(calm)
    assert [(line["row"], line["seed"], line["status"]) for line in lines] == [
        (row, seed, "failed" if row == "diverges" else "done")
        for seed in ("0", "1")
        for row in ("source-only", "ovanet", "diverges")
    ]
    for line in lines:
        if line["status"] == "done":
            run = calm / "runs" / f"glyphs-{line['row']}-{line['seed']}"
            assert float(line["hos"]) == pytest.approx(last_step(run)["hos"], abs=1e-6)
            assert unida.load(run).config.training.steps == int(line["steps"])
        else:
            assert "not finite" in line["reason"] and not line["hos"]
    assert "not finite" in (calm / "failed" / "glyphs-diverges-0.txt").read_text()
    assert "| ovanet |" in (calm / "results.md").read_text(), "the tables, to read"


def test_a_run_of_a_grid_is_the_run_of_its_command(calm: Path, spec: Spec, tmp_path: Path, cli: Cli) -> None:
    command = next(line["command"] for line in results(calm) if line["row"] == "ovanet" and line["seed"] == "1")
    both, cache = spec["folders"]["glyphs"], spec["options"]["cache"]
    words = command.replace("SOURCE", str(both["source"])).replace("TARGET", str(both["target"])).split()[1:]
    words[words.index("RUN")] = str(tmp_path / "run")
    assert cli([*words, "--cache", cache]).code == 0
    of_grid = calm / "runs" / "glyphs-ovanet-1"
    assert (tmp_path / "run" / "predictions.csv").read_bytes() == (of_grid / "predictions.csv").read_bytes()


def test_given_again_a_grid_runs_only_what_is_missing(calm: Path, spec: Spec, tmp_path: Path, here: Here) -> None:
    out = Path(shutil.copytree(calm, tmp_path / "out"))
    shutil.rmtree(out / "runs" / "glyphs-ovanet-0")
    rows = {**spec["rows"], "diverges": {"lr": 1e12, "steps": 12}, "third": {"method": "source-only"}}
    found = unida.grid({**spec, "rows": rows}, out, rows=["ovanet", "third"], seeds=[0])
    assert here.seen == ["glyphs-ovanet-0", "glyphs-third-0"]
    assert results(out, "third") == results(calm)
    assert [record["row"] for record in found.failed] == ["diverges", "diverges"]
    assert "| third |" in found.table(metric="auroc", rows=["third", "ovanet"])


def test_status_from_another_terminal(calm: Path, cli: Cli) -> None:
    answer = cli(["grid", "status", calm])
    assert answer.code == 0
    assert "4 of 6 runs done, 2 failed" in answer.out and "failed: glyphs-diverges-0: loss" in answer.out
    assert "give the command again" in answer.out


def test_status_while_it_runs(spec: Spec, tmp_path: Path, here: Here, cli: Cli) -> None:
    seen = []

    def look(task: Task) -> Outcome:
        (task.folder).mkdir(parents=True)
        (task.folder / "metrics.jsonl").write_text('{"step": 7, "kind": "train"}\n{"step": 8')
        seen.append("\n".join(status_lines(tmp_path / "out")))
        return Outcome("failed", "for the test", 5.0)

    here.answer = look
    assert len(unida.grid({**spec, "seeds": [0]}, tmp_path / "out", no_estimate=True).failed) == 2
    assert "0 of 2 runs done" in seen[0] and "running: glyphs-source-only-0" in seen[0] and "step 7" in seen[0]
    assert f"process {os.getpid()}" in seen[1] and "1 failed" in seen[1]


def test_a_dry_run_tells_the_plan_and_the_time_and_writes_nothing(spec: Spec, tmp_path: Path, cli: Cli) -> None:
    path = write_spec(spec, tmp_path / "spec.yaml")
    answer = cli(["grid", path, "--out", tmp_path / "out", "--dry-run"])
    assert answer.code == 0, answer.err
    assert "2 rows × 1 pair of folders × 2 seeds = 4 runs" in answer.out
    assert "time: about" in answer.out and "a run" in answer.out
    assert not (tmp_path / "out").exists()


# Kills


class ForkedWorker:
    """Stands in for the `Popen` of a worker: forked from its driver, which has torch loaded."""

    def __init__(self, command: list[str], **options: Any) -> None:
        assert command[1:] == ["-m", "unida.grids.worker"]
        (orders, send), (receive, answers) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.dup2(orders, 0)
            os.dup2(answers, 1)
            os.closerange(3, 1024)  # the driver's lock, and pipes of other workers
            sys.stdin = open(0)  # noqa: SIM115
            try:
                worker.main()
            finally:  # never back into the driver's code
                os._exit(1)
        os.close(orders)
        os.close(answers)
        self.stdin, self.stdout = os.fdopen(send, "w"), os.fdopen(receive)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> None:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)


def fork_workers() -> None:
    local.subprocess = SimpleNamespace(PIPE=subprocess.PIPE, Popen=ForkedWorker)  # type: ignore[assignment]


class Driver(Protocol):
    pid: int


def killed_and_continued(
    begin: Callable[[], Driver], code: Callable[[Any], int | None], out: Path, victims: Sequence[str], name: str
) -> None:
    """Start the grid; kill what `victims` name, one after another, each after another checkpoint; until it ends.

    Args:
        code: of a driver that has ended; None before.
        name: what the command line of a worker has in it.
    """
    waiting = list(victims)
    for _ in range(2 + waiting.count("driver")):
        driver = begin()
        while code(driver) is None:
            if waiting and len(list(out.glob("runs/*/checkpoint/resume.safetensors"))) > len(victims) - len(waiting):
                found = [driver.pid] if waiting[0] == "driver" else below(driver.pid, name)
                if found:
                    os.kill(found[0], signal.SIGKILL)
                    waiting.pop(0)
            time.sleep(0.01)
        if code(driver) == 0:
            break
    assert code(driver) == 0 and not waiting


def below(process: int, name: str) -> list[int]:
    """Processes that this one has started, directly or not, with the name in their command line."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    parts = [line.split(None, 2) for line in listed.splitlines()]
    rows = [(int(pid), int(parent), command) for pid, parent, command in parts]
    found, waiting = [], [process]
    while waiting:
        parent = waiting.pop()
        children = [(pid, command) for pid, above, command in rows if above == parent]
        waiting += [pid for pid, _ in children]
        found += [pid for pid, command in children if name in command]
    return found


def test_killed_drivers_and_workers_change_nothing(spec: Spec, calm: Path, tmp_path: Path) -> None:
    path = write_spec(spec, tmp_path / "spec.yaml")
    words = ["grid", str(path), "--out", str(tmp_path / "out"), "--workers", "2", "--no-estimate"]
    victims = ["worker", "driver", "worker"]
    killed_and_continued(lambda: Forked(words, fork_workers), lambda it: it.code, tmp_path / "out", victims, "")
    assert results(tmp_path / "out") == results(calm, "diverges")


def test_a_worker_does_not_outlive_its_driver(spec: Spec, tmp_path: Path) -> None:
    rows = {"long": {"method": "ovanet", "steps": 100_000}}
    path = write_spec({**spec, "rows": rows, "seeds": [0]}, tmp_path / "spec.yaml")
    driver = Forked(["grid", str(path), "--out", str(tmp_path / "out"), "--no-estimate"], fork_workers)
    log = tmp_path / "out/runs/glyphs-long-0/metrics.jsonl"
    assert soon(lambda: log.exists() and log.stat().st_size > 0)
    (worker,) = below(driver.pid, "")
    driver.send(signal.SIGKILL)
    driver.end()
    ended = Path(f"/proc/{worker}/stat")
    assert soon(lambda: not ended.exists() or ended.read_text().split()[2] == "Z")


def soon(happens: Callable[[], bool], seconds: float = 1200) -> bool:
    """Whether it happens in time."""
    deadline = time.monotonic() + seconds
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.1)
    return happens()


def test_ctrl_c_saves_what_runs_and_says_how_to_go_on(spec: Spec, calm: Path, tmp_path: Path) -> None:
    """Its worker has finished one run and is at the next."""
    rows = {"source-only": spec["rows"]["source-only"], "long": {"method": "ovanet", "steps": 100_000}}
    path = write_spec({**spec, "rows": rows, "seeds": [0]}, tmp_path / "spec.yaml")
    words = ["grid", str(path), "--out", str(tmp_path / "out"), "--workers", "1", "--no-estimate"]
    driver = Forked(words, prepare=fork_workers)
    log = tmp_path / "out/runs/glyphs-long-0/metrics.jsonl"
    assert soon(lambda: log.exists() and log.stat().st_size > 0)
    driver.send(signal.SIGINT)
    assert driver.end(seconds=600) == 130 and "Continue with the same command" in driver.printed
    assert (tmp_path / "out/runs/glyphs-long-0/checkpoint/resume.safetensors").exists()
    first = "runs/glyphs-source-only-0/predictions.csv"
    assert (tmp_path / "out" / first).read_bytes() == (calm / first).read_bytes()


def test_a_worker_that_keeps_dying_is_one_failed_run(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "dies"
    script.write_text(f"#!{sys.executable}\nimport os\ninput()\nos.kill(os.getpid(), 9)\n")
    script.chmod(0o755)
    monkeypatch.setattr("unida.grids.local.sys.executable", str(script))
    task = plan(grid_from({**spec, "seeds": [0], "rows": {"a": {}}}), tmp_path / "out")[0]
    events = list(LocalEngine(1, tmp_path / "logs", attempts=3).run([task]))
    assert [type(event) for event in events] == [Started, Started, Started, Ended]
    assert "3 times by SIGKILL" in events[-1].outcome.reason and "fewer --workers" in events[-1].outcome.reason  # type: ignore[union-attr]


# Refusals


def test_two_drivers_of_one_folder(spec: Spec, tmp_path: Path, here: Here) -> None:
    refused = []

    def second(task: Task) -> Outcome:
        with pytest.raises(UserError) as caught:
            unida.grid(spec, tmp_path / "out", no_estimate=True)
        refused.append(str(caught.value))
        return Outcome("failed", "for the test")

    here.answer = second
    unida.grid({**spec, "seeds": [0]}, tmp_path / "out", no_estimate=True)
    assert f"process {os.getpid()} on" in refused[0] and "is working there" in refused[0]


def test_a_full_disk_ends_the_grid_and_the_rest_can_go_on(
    spec: Spec, calm: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "predictions.csv")

    short = {**spec, "rows": {"source-only": spec["rows"]["source-only"]}}
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_skipped", full)
        with pytest.raises(UserError, match=r"no space is left for glyphs-source-only-0.*give the command again"):
            unida.grid(short, tmp_path / "out", no_estimate=True)
    assert here.seen == ["glyphs-source-only-0"]  # the others would fail, too
    unida.grid(short, tmp_path / "out", no_estimate=True)
    assert results(tmp_path / "out") == results(calm, "diverges", "ovanet")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "give a spec"),
        (["spec.yaml"], "--out DIR is missing"),
        (["gone.yaml", "--out", "out"], "gone.yaml cannot be read"),
        (["spec.yaml", "--paper", "unida-office31", "--out", "out"], "give a spec"),
        (["--paper", "unida-ofice31", "--out", "out"], "did you mean 'unida-office31'"),
        (["--paper", "unida-office31", "--out", "out"], "--root DIR is missing"),
        (["spec.yaml", "--out", "spec.yaml"], "spec.yaml is a file"),
        (["spec.yaml", "--out", "/proc/grid"], "cannot be written"),
        (["spec.yaml", "--out", "out", "--rows", "ovnet"], "did you mean 'ovanet'"),
        (["spec.yaml", "--out", "out", "--set", "steps"], "NAME=VALUE"),
        (["spec.yaml", "--out", "out", "--set", "stepps=3"], "'stepps'"),
        (["spec.yaml", "--out", "out", "--workers", "0"], "--workers is 0"),
        (["status", "gone"], "not the folder of a grid"),
    ],
)
def test_a_wrong_call_is_one_line(
    words: list[str], expected: str, spec: Spec, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_spec(spec, tmp_path / "spec.yaml")
    answer = cli(["grid", *words])
    assert answer.code == 2
    assert expected in answer.err and answer.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]


# Other engines


def test_a_job_of_the_slurm_script_is_a_run(spec: Spec, calm: Path, tmp_path: Path, cli: Cli) -> None:
    path = write_spec({**spec, "rows": {**spec["rows"], "diverges": {"lr": 1e12, "steps": 12}}}, tmp_path / "spec.yaml")
    out = tmp_path / "out dir"
    answer = cli(["grid", path, "--out", out, "--engine", "slurm-script", "--rows", "source-only", "diverges"])
    assert answer.code == 0 and "sbatch" in answer.out
    assert "#SBATCH --array=0-3\n" in (out / "array.sh").read_text()
    done = subprocess.run(
        ["bash", str(out / "array.sh")],
        env={**ENVIRONMENT, "SLURM_ARRAY_TASK_ID": "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first = out / "runs/glyphs-source-only-0/predictions.csv"
    assert first.read_bytes() == (calm / "runs/glyphs-source-only-0/predictions.csv").read_bytes()
    failed = cli(["grid", "task", out, "glyphs-diverges-0"])
    assert failed.code == 1 and "not finite" in failed.err
    assert cli(["grid", "task", out, "glyphs-diverged-0"]).code == 2
    assert "1 of 6 runs done, 1 failed" in cli(["grid", "status", out]).out
    table = cli(["table", out])
    assert table.code == 0 and "| source-only |" in table.out and "ovanet" not in table.out


def test_ray_gives_the_same_results_though_a_worker_is_killed(
    spec: Spec, calm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="--engine ray needs unida[ray]")
    monkeypatch.setitem(ENVIRONMENT, "RAY_worker_niceness", "0")
    path = write_spec({**spec, "rows": {"ovanet": spec["rows"]["ovanet"]}}, tmp_path / "spec.yaml")
    words = ["grid", str(path), "--out", str(tmp_path / "out"), "--engine", "ray", "--workers", "1"]
    with (tmp_path / "printed.txt").open("w") as printed:
        begin = partial(subprocess.Popen, [sys.executable, "-m", "unida", *words], stdout=printed, stderr=printed)
        killed_and_continued(
            partial(begin, env=ENVIRONMENT), lambda it: it.poll(), tmp_path / "out", ["worker"], "ray::_run"
        )
    assert results(tmp_path / "out") == results(calm, "diverges", "source-only")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Interrupted("stopped"), "stopped", ""),
        (UserError("--lr is wrong"), "failed", "--lr is wrong"),
        (ZeroDivisionError("by zero"), "failed", "ZeroDivisionError: by zero"),
        (OSError(errno.ENOSPC, "No space"), "disk full", "OSError"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "disk full", "No space"),
    ],
)
def test_outcomes_are_told_apart(
    error: Exception, status: str, reason: str, spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(config: Any) -> None:
        os.write(1, b"said by the run")
        raise error

    monkeypatch.setattr("unida.runs.pipeline.execute", execute)
    task = plan(grid_from({**spec, "seeds": [0], "rows": {"a": {}}}), tmp_path / "out")[0]
    outcome = carry_out(task, tmp_path / "log.txt")
    assert outcome.status == status and reason in outcome.reason
    assert "said by the run" in (tmp_path / "log.txt").read_text()
