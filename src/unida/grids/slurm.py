"""The runs of a grid as a SLURM array: a script to hand in with sbatch. Nothing runs here."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from unida.grids.plan import Task
from unida.support.files import write_text

COMMANDS, SCRIPT = "commands.txt", "array.sh"

TEMPLATE = """\
#!/bin/bash
# The runs of a grid, one for each line of commands.txt. Hand in with: sbatch {script}
# A run that was stopped goes on if the script is handed in again. Then: unida table {out}
#SBATCH --job-name=unida
#SBATCH --array=1-{count}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={cpus}
{gpus}#SBATCH --output="{logs}/slurm-%a.txt"
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@60

export OMP_NUM_THREADS={cpus}
command=$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" {commands})
if [ -z "$command" ]; then
  echo "commands.txt has no line ${{SLURM_ARRAY_TASK_ID}}" >&2
  exit 1
fi
echo "$command"
eval "exec $command"
"""


def write_script(tasks: Sequence[Task], out: Path, cpus_per_run: int, gpus_per_run: float) -> Path:
    """DIR/array.sh and DIR/commands.txt, for the runs that are not finished."""
    (out / "logs").mkdir(parents=True, exist_ok=True)
    commands, script = out.absolute() / COMMANDS, out.absolute() / SCRIPT
    lines = [shlex.join([sys.executable, "-m", "unida", *task.words]) for task in tasks]
    write_text(commands, "".join(line + "\n" for line in lines))
    gpus = f"#SBATCH --gpus-per-task={max(1, round(gpus_per_run))}\n" if gpus_per_run else ""
    text = TEMPLATE.format(
        commands=shlex.quote(str(commands)),
        script=shlex.quote(str(script)),
        out=shlex.quote(str(out.absolute())),
        logs=out.absolute() / "logs",
        count=len(tasks),
        cpus=cpus_per_run,
        gpus=gpus,
    )
    write_text(script, text)
    script.chmod(0o755)
    return script
