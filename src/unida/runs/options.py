"""The options that say where a run's results go, and how often it reports."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from unida.errors import UserError
from unida.support.options import LARGEST_INTEGER, check_numbers, shown
from unida.support.suggest import did_you_mean

TRACKED = ("pas", "ntr", "dis")  # the measures that --track knows


@dataclass(frozen=True)
class OutputOptions:
    out: Annotated[Path | None, shown("DIR")] = None
    """Write the run to this folder. It must be new."""
    resume: bool = False
    """Continue the run in --out; the result is the same as without the interruption."""
    log_every: int = 10
    """Steps between two lines of losses."""
    eval_every: Annotated[int, shown("N", "(default: 0, at the end only)")] = 0
    """Steps between two evaluations: metrics, if the target has labels, and the measures of --track."""
    track: Annotated[str | None, shown("NAMES", "(for example ntr,dis; default: none)")] = None
    """Measure the features at every evaluation: pas (with --spa), ntr (if the target has labels), dis."""
    checkpoint_every: Annotated[int | None, shown("N", "(default: 50; 500 with a GPU or --train head)")] = None
    """Steps between two checkpoints."""
    oracle_best: bool = False
    """Also report the best evaluation by target labels. It is an oracle: do not compare it with a last step."""

    def check(self) -> None:
        check_numbers(self, "log_every", "checkpoint_every", least=1, most=LARGEST_INTEGER)
        check_numbers(self, "eval_every", least=0, most=LARGEST_INTEGER)
        if self.oracle_best and not self.eval_every:
            raise UserError("--oracle-best compares evaluations: set how often with --eval-every N")
        for name in self.tracked:
            if name not in TRACKED:
                raise UserError(f"--track has {name!r}{did_you_mean(name, TRACKED)}; it knows {', '.join(TRACKED)}")
        if self.tracked and not self.eval_every:
            raise UserError("--track measures at every evaluation: set how often with --eval-every N")

    @property
    def tracked(self) -> tuple[str, ...]:
        """The names in --track."""
        return tuple(name.strip() for name in self.track.split(",")) if self.track is not None else ()
