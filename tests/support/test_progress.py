"""Progress is a bar on a terminal and plain lines elsewhere, and its time left is an honest estimate."""

import io

import pytest

from unida.support import progress as module
from unida.support.progress import data_size, duration, progress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (4.4, "4 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (75, "1 min 15 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (4000, "1 h 6 min"),
        (90_000, "25 h 0 min"),
    ],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_plain_lines_come_at_most_every_ten_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("training", 100) as report:
        for done in range(1, 26):
            clock.now += 1
            report(done, f"loss {done}")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "training: 10/100  loss 10  1 min 30 s left",
        "training: 20/100  loss 20  1 min 20 s left",
    ]


def test_a_line_without_a_note_has_no_gap(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("decoding", 20) as report:
        clock.now += 10
        report(10)
    assert capsys.readouterr().err == "decoding: 10/20  10 s left\n"


def test_what_was_done_before_does_not_speed_up_the_estimate(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("training", 100, done=90) as report:
        clock.now += 20
        report(90)  # nothing done yet: nothing to estimate from
        report(92)  # two in twenty seconds, eight to go
    assert capsys.readouterr().err.splitlines() == ["training: 92/100  1 min 20 s left"]


@pytest.mark.parametrize("options", [{"total": 10, "visible": False}, {"total": 10, "done": 10}, {"total": 0}])
@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_said_when_unwanted_or_nothing_is_to_do(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, options: dict[str, int], terminal: bool
) -> None:
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with progress("training", **options) as report:  # type: ignore[arg-type]
        clock.now += 100
        report(5, "a note")
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress("training", 8, done=2) as report:
        report(5, "loss 0.25")
    shown = terminal.getvalue()
    for text in ("training", "5/8", "loss 0.25", "━"):
        assert text in shown


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("visible", [True, False])
def test_errors_pass_through(monkeypatch: pytest.MonkeyPatch, terminal: bool, visible: bool) -> None:
    monkeypatch.setattr("sys.stderr", Terminal() if terminal else io.StringIO())
    with pytest.raises(ZeroDivisionError), progress("training", 8, visible=visible):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0.0 MiB"), (1.5 * 2**20, "1.5 MiB"), (2**30 // 8, "0.12 GiB"), (3 * 2**30, "3.00 GiB")]
)
def test_sizes_for_people(count: float, told: str) -> None:
    assert data_size(count) == told
