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
#SBATCH --array=0-{last}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={cpus}
{gpus}#SBATCH --output="{logs}/slurm-%a.txt"
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@60

export OMP_NUM_THREADS={cpus}
names=(
{names}
)
exec {python} -m unida grid task {out} "${{names[$SLURM_ARRAY_TASK_ID]}}"
"""


def write_script(tasks: Sequence[Task], out: Path, cpus_per_run: int, gpus_per_run: float) -> Path:
    """DIR/array.sh. SLURM copies a script that is handed in: a new one does not change what waiting jobs will do."""
    (out / "logs").mkdir(parents=True, exist_ok=True)
    script = out.absolute() / SCRIPT
    text = TEMPLATE.format(
        script=shlex.quote(str(script)),
        out=shlex.quote(str(out.absolute())),
        last=len(tasks) - 1,
        names="\n".join(f"  {task.name}" for task in tasks),
        logs=str(out.absolute() / "logs").replace("%", "%%"),  # SLURM's patterns begin with it
        cpus=cpus_per_run,
        gpus=f"#SBATCH --gpus-per-task={max(1, round(gpus_per_run))}\n" if gpus_per_run else "",
        python=shlex.quote(sys.executable),
    )
    write_text(script, text)
    script.chmod(0o755)
    return script
