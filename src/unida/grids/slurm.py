"""The runs of a grid as a SLURM array: a script to hand in with sbatch. Nothing runs here."""

import sys
from collections.abc import Sequence
from pathlib import Path

from unida.grids.plan import Task
from unida.support.files import write_text

COMMANDS, SCRIPT = "commands.txt", "array.sh"

TEMPLATE = """\
#!/bin/bash
# The runs of a grid, one for each line of {commands}. Hand in with: sbatch {script}
# A run that was stopped goes on if the script is handed in again. Then: unida table {out}
#SBATCH --job-name=unida
#SBATCH --array=1-{count}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={cpus}
{gpus}#SBATCH --output={out}/logs/slurm-%a.txt
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@60

export OMP_NUM_THREADS={cpus}
command=$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" {commands})
echo "$command"
eval "exec $command"
"""


def write_script(tasks: Sequence[Task], out: Path, cpus_per_run: int, gpus_per_run: float) -> Path:
    """DIR/array.sh and DIR/commands.txt, for the runs that are not finished."""
    (out / "logs").mkdir(parents=True, exist_ok=True)
    commands, script = out.absolute() / COMMANDS, out.absolute() / SCRIPT
    lines = [task.command.replace("unida", f"{sys.executable} -m unida", 1) for task in tasks]
    write_text(commands, "".join(line + "\n" for line in lines))
    gpus = f"#SBATCH --gpus-per-task={max(1, round(gpus_per_run))}\n" if gpus_per_run else ""
    text = TEMPLATE.format(
        commands=commands, script=script, out=out.absolute(), count=len(tasks), cpus=cpus_per_run, gpus=gpus
    )
    write_text(script, text)
    script.chmod(0o755)
    return script
