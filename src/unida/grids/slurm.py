"""The runs of a grid as a SLURM array: a script to hand in with sbatch. Nothing runs here."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from unida.grids.plan import Task
from unida.support.files import write_text

SCRIPT = "array.sh"

TEMPLATE = """\
#!/bin/bash
# The runs of a grid that are not finished. Hand in with: sbatch {script}
# A run that was stopped goes on if the script is handed in again. Then: unida table {out}
#SBATCH --job-name=unida
#SBATCH --array={numbers}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={cpus}
{gpus}#SBATCH --output="{logs}/slurm-%a.txt"
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@60

export OMP_NUM_THREADS={cpus}
exec {python} -m unida grid task {out} "$SLURM_ARRAY_TASK_ID"
"""


def write_script(
    whole: Sequence[Task], todo: Sequence[Task], out: Path, cpus_per_run: int, gpus_per_run: float
) -> Path:
    """DIR/array.sh for some runs of a grid. A job has the number of its run in the whole plan: so a new script does
    not change what jobs that are waiting will do.
    """
    (out / "logs").mkdir(parents=True, exist_ok=True)
    script = out.absolute() / SCRIPT
    text = TEMPLATE.format(
        script=shlex.quote(str(script)),
        out=shlex.quote(str(out.absolute())),
        numbers=",".join(str(number) for number, task in enumerate(whole) if task in todo),
        logs=out.absolute() / "logs",
        cpus=cpus_per_run,
        gpus=f"#SBATCH --gpus-per-task={max(1, round(gpus_per_run))}\n" if gpus_per_run else "",
        python=shlex.quote(sys.executable),
    )
    write_text(script, text)
    script.chmod(0o755)
    return script
