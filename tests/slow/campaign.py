"""A campaign of faults: kills, flipped bits and drawn options, for some minutes.

    python tests/slow/campaign.py --seed 0 --minutes 6

A run that is killed must end with the bits of one that never was. A flipped bit must change no answer in silence. Drawn
options must give a run or one line. Anything else is printed, and the exit code is 1. It is no part of `make test`.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import io
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import typing
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))
os.environ["OMP_NUM_THREADS"] = "1"

from small_methods import register  # noqa: E402
from tiny_runs import adapt_arguments  # noqa: E402

from unida.config import config_class  # noqa: E402
from unida.data.glyphs import GlyphFolders, write_glyphs  # noqa: E402
from unida.support.options import flag  # noqa: E402

KINDS: dict[str, dict[str, Any]] = {
    "ovanet all": {"method": "ovanet", "train": "all"},
    "dcc tail": {"method": "dcc", "train": "tail"},
    "ovanet+spa tail": {"method": "ovanet", "train": "tail", "spa": True, "spa.vocabulary": 16, "spa.pretext": "on"},
    "source-only head": {"method": "source-only", "train": "head"},
    "three phases": {"method": "three-phases", "train": "all"},
}
SCRIPT = HERE.parent / "integration" / "small_methods.py"


class Campaign:
    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.draw, self.counts = place, random.Random(seed), Counter[str]()
        self.failures: list[str] = []
        self.folders: GlyphFolders = write_glyphs(
            place / "data", shared=2, source_private=1, target_private=1, per_class=6, size=40
        )

    def words(self, name: str, kind: str, cache: str) -> list[str]:
        options = {"steps": 40, "checkpoint_every": 3, "eval_every": 7, "spa.pool": 64, **KINDS[kind]}
        if "spa" not in KINDS[kind]:
            del options["spa.pool"]
        folders = self.folders
        return adapt_arguments(folders.source, folders.target, self.place / name, self.place / cache, **options)

    def failed(self, what: str, output: str = "") -> None:
        self.counts["failures"] += 1
        self.failures.append(f"{what}\n{output[-2000:]}")
        print(f"FAILED {what}\n{output[-2000:]}", flush=True)

    def kills(self, seconds: float) -> None:
        """Runs of every kind, killed again and again at random moments until they come to their end."""
        end, whole = time.monotonic() + seconds, {}
        for number in range(10_000):
            if time.monotonic() > end and number >= len(KINDS):
                return
            kind = list(KINDS)[number % len(KINDS)]
            if kind not in whole:
                start = time.monotonic()
                code, output = call(self.words(f"whole {kind}", kind, f"cache of {kind}"))
                if code:
                    self.failed(f"undisturbed {kind}", output)
                whole[kind] = (print_of(self.place / f"whole {kind}"), time.monotonic() - start)
            self._kill_one(kind, number, *whole[kind])

    def _kill_one(self, kind: str, number: int, expected: str, seconds: float) -> None:
        out, words = self.place / f"killed {number}", self.words(f"killed {number}", kind, f"cache {number}")
        for attempt in range(50):
            process = subprocess.Popen(
                [sys.executable, SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            which = self.draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            try:
                output, _ = process.communicate(timeout=self.draw.uniform(0.3, 1.3) * seconds if attempt < 4 else 300)
            except subprocess.TimeoutExpired:
                process.send_signal(which)
                output, _ = process.communicate()
                self.counts[f"kills by {which.name}"] += 1
                # Before the first word Python is still starting, and after the results it is ending.
                begun = bool(output) and not (out / "metrics.json").exists()
                said = process.returncode == 0 or "Continue with" in output
                if begun and which != signal.SIGKILL and not said:
                    self.failed(f"{kind}: {which.name} without a word, exit {process.returncode}", output)
            else:
                if process.returncode:
                    self.failed(f"{kind}: exit {process.returncode}", output)
                break
            if (out / "config.yaml").exists():
                words = ["adapt", "--out", str(out), "--resume"]
        self.counts["killed runs"] += 1
        same = (out / "metrics.json").exists() and print_of(out) == expected
        self.counts["killed runs with the same bits"] += same
        if not same:
            self.failed(f"{kind} {number}: other bits")
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(self.place / f"cache {number}", ignore_errors=True)

    def flips(self, seconds: float) -> None:
        """A bit of a file of a run or of the cache; then the run is resumed, trained from the start, or answers."""
        code, output = call(self.words("flipped", "ovanet+spa tail", "cache of flips"))
        assert code == 0, output
        run, cache, kept = self.place / "flipped", self.place / "cache of flips", self.place / "kept"
        shutil.copytree(run, kept / "run")
        shutil.copytree(cache, kept / "cache")
        answers = self.place / "answers.csv"
        expected = {"resume": print_of(run), "from the start": print_of(run)}
        assert here(["predict", str(run), str(self.folders.target), "--csv", str(answers)])[0] == 0
        expected["predict"] = answers.read_text()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for folder, copy in ((run, kept / "run"), (cache, kept / "cache")):
                shutil.rmtree(folder)
                shutil.copytree(copy, folder)
            answers.unlink(missing_ok=True)
            then = self.draw.choice(list(expected))
            files = [p for p in (*run.rglob("*"), *cache.rglob("*")) if p.is_file() and p.stat().st_size]
            file = run / "checkpoint" / "model.safetensors" if then == "predict" else self.draw.choice(files)
            what = f"{flip(file, self.draw)}, {then}"
            if then != "predict":
                (run / "metrics.json").unlink(missing_ok=True)
            if then == "from the start":
                shutil.rmtree(run / "checkpoint")
            words = ["predict", str(run), str(self.folders.target), "--csv", str(answers)]
            words = words if then == "predict" else ["adapt", "--out", str(run), "--resume"]
            found = self._after_flip(words, what)
            if found == 0 and expected[then] != (answers.read_text() if then == "predict" else print_of(run)):
                self.failed(f"{what}: other answers in silence")

    def _after_flip(self, words: list[str], what: str) -> int:
        code = 2
        for _ in range(2):  # a damaged cache may be removed by the first, and made again by the second
            code, output = here(words)
            if "Traceback" in output or code not in (0, 2):
                self.failed(f"{what}: exit {code}", output)
                return code
            if code == 0:
                break
        self.counts["flips"] += 1
        self.counts["flips named in one line" if code == 2 else "flips with a result"] += 1
        return code

    def options(self, seconds: float) -> None:
        """Combinations of options drawn from everything that the parser takes."""
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            number += 1
            method = self.draw.choice(["source-only", "ovanet", "dcc"])
            drawn = self._draw_options(method)
            out = self.place / f"drawn {number}"
            words = adapt_arguments(
                self.folders.source, self.folders.target, out, self.place / "cache of drawn", method=method, steps=2
            )
            code, output = here([*words, *drawn])
            lines = [line for line in output.splitlines() if line.startswith("error: ")]
            self.counts["drawn options"] += 1
            self.counts[f"drawn options: {'refused' if code else 'trained'}"] += 1
            if "Traceback" in output or code not in (0, 2) or (code == 2 and len(lines) != 1):
                self.failed(f"options {' '.join(drawn)}", output)
            shutil.rmtree(out, ignore_errors=True)

    def _draw_options(self, method: str) -> list[str]:
        fixed = {"method", "steps", "source", "target", "out", "cache", "resume", "benchmark", "root", "pair"}
        fixed |= {"devices", "num_nodes", "accelerator", "compile", "backbone", "precision"}
        cls = config_class(method)
        fields = {}
        for group in dataclasses.fields(cls):
            hints = typing.get_type_hints(group.type)
            fields |= {name: hint for name, hint in hints.items() if name not in fixed}
        chosen = self.draw.sample(sorted(fields), self.draw.randint(1, 4))
        if any(name.startswith("spa") for name in chosen) or self.draw.random() < 0.3:
            chosen = ["spa", *(name for name in chosen if name != "spa")]
        words: list[str] = []
        for name in chosen:
            value = self._draw_value(name, fields[name])
            words += [flag(name)] if value is True else [] if value is False else [flag(name), str(value)]
        return words

    def _draw_value(self, name: str, hint: Any) -> Any:
        kinds = typing.get_args(hint) if typing.get_origin(hint) not in (None, typing.Literal) else (hint,)
        kind = self.draw.choice([kind for kind in kinds if kind is not type(None)])
        if typing.get_origin(kind) is typing.Literal:
            return self.draw.choice(typing.get_args(kind))
        if kind is bool:
            return True
        if kind is int:
            small = (-1, 0, 1, 2, 3, 5, 8, 16)
            return self.draw.choice((*small, 33, 100, 10_000, 10**9, 2**63, 10**30))
        if kind is float:
            return self.draw.choice((math.nan, -1.0, 0.0, 1e-12, 0.1, 0.5, 1.0, 3.0, 1e6, 1e38, math.inf))
        return self.draw.choice(["auto", "none", "layer3", "layer4", "stem", "x", "", "pas,dis", "1,2-4", "unida"])


def call(words: list[str]) -> tuple[int, str]:
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def here(words: list[str]) -> tuple[int, str]:
    """In this process, which has torch loaded: exit code and everything that was printed."""
    import logging
    import traceback

    from unida.cli import main

    said = io.StringIO()
    logging.getLogger().handlers = []
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(words)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            said.write(traceback.format_exc())
            code = 1
    return code, said.getvalue()


def flip(file: Path, draw: random.Random) -> str:
    content = bytearray(file.read_bytes())
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    content[place] ^= 1 << bit
    file.write_bytes(content)
    return f"bit {bit} of byte {place} of {file.name}"


def print_of(run: Path) -> str:
    """Of the weights and the answers."""
    digest = hashlib.sha256((run / "checkpoint" / "model.safetensors").read_bytes())
    digest.update((run / "predictions.csv").read_bytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--only", choices=["kills", "flips", "options"])
    options = parser.parse_args()
    register()
    with tempfile.TemporaryDirectory() as place:
        campaign = Campaign(Path(place), options.seed)
        parts = [options.only] if options.only else ["kills", "flips", "options"]
        for part in parts:
            getattr(campaign, part)(60 * options.minutes / len(parts))
    for name, count in sorted(campaign.counts.items()):
        print(f"{count:6}  {name}")
    sys.exit(1 if campaign.failures else 0)


if __name__ == "__main__":
    main()
