"""Stand-ins for Slurm's commands, which accept jobs and never run them, for limits that our real Slurm has not."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

SBATCH = r"""#!/bin/bash
cd {folder}
echo called >>calls
while [ -e hold ]; do sleep 0.05; done
script=${{!#}}
while IFS= read -r line; do
  case $line in
    "#SBATCH --array="*) array=${{line#*=}} ;;
    "#SBATCH --comment="*) comment=${{line#*=}} ;;
  esac
done <"$script"
mapfile -t known <jobs
last=${{array%%%*}} last=${{last#0-}} count=$(($last + 1))
[ -n "$array" ] || count=1
after=-
for word; do
  [[ $word != --dependency=* ]] || after=${{word#*=}}
  [[ $word != --comment=* ]] || comment=${{word#*=}}
done
if [ -e most_jobs ] && [ $(($(awk '{{n += $2}} END {{print n + 0}}' jobs) + count)) -gt "$(cat most_jobs)" ]; then
  echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size" \
    "and/or time limits)" >&2
  exit 1
fi
if [ -e most_elements ] && [ "$count" -gt "$(cat most_elements)" ]; then
  echo "sbatch: error: Batch job submission failed: Invalid job array specification" >&2
  exit 1
fi
if [ -e refusal ] && grep -q -- "$(cat refusal)" "$script"; then
  echo "sbatch: error: Batch job submission failed: Invalid license specification" >&2
  exit 1
fi
id=$((100 + ${{#known[@]}}))
echo "$id $count ${{array:--}} $comment $after $script" >>jobs
echo "$id"
"""
SQUEUE = r"""#!/bin/bash
[ ! -e {folder}/down ] || exit 1
while read -r id count array comment after script; do
  for ((n = 0; n < count; n++)); do
    [ "$array" = - ] && name=$id || name=${{id}}_$n
    printf '%-64s%-32s%-64s%-256s\n' "$name" PENDING Resources "$comment"
  done
done <{folder}/jobs
"""
SCONTROL = """#!/bin/bash
[ ! -e {folder}/most_elements ] || echo "MaxArraySize            = $(cat {folder}/most_elements)"
"""
SACCT = """#!/bin/bash
echo "Slurm accounting storage is disabled" >&2
exit 1
"""


@dataclass(frozen=True)
class Job:
    """A job or array that was accepted: its id, its number of elements, and its options."""

    id: str
    count: int
    array: str
    token: str
    dependency: str
    script: Path

    @property
    def points(self) -> list[int]:
        """The points that the job runs."""
        if self.array == "-":
            return [int(self.script.parent.name)]
        return [int(line) for line in self.script.with_suffix("").read_text().split()]

    @property
    def nodes(self) -> int:
        found = re.search(r"^#SBATCH --nodes=(\d+)", self.script.read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])


class SlurmStandIn:
    """The stand-ins, in the folder `bin`, and the jobs that they have accepted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir(parents=True)
        (folder / "jobs").touch()
        for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scontrol", SCONTROL), ("sacct", SACCT)):
            (self.bin / name).write_text(text.format(folder=folder))
            (self.bin / name).chmod(0o755)

    @property
    def path(self) -> str:
        """A PATH with the stand-ins."""
        return f"{self.bin}:{os.environ['PATH']}"

    def set(self, **settings: object) -> None:
        """most_jobs and most_elements: limits; refusal: words in scripts that are refused; hold: sbatch waits; down:
        squeue fails. None takes it back."""
        for name, value in settings.items():
            if value is None:
                (self.folder / name).unlink(missing_ok=True)
            else:
                (self.folder / name).write_text(f"{value}\n")

    def jobs(self) -> list[Job]:
        """Returns the jobs, in the order of submission."""
        lines = [line.split(" ", 5) for line in (self.folder / "jobs").read_text().splitlines()]
        return [Job(job, int(count), *words, Path(script)) for job, count, *words, script in lines]

    def calls(self) -> int:
        """Returns how often sbatch was started."""
        return len((self.folder / "calls").read_text().split()) if (self.folder / "calls").exists() else 0

    def end(self, job: str) -> None:
        """Ends a job, and removes it from the queue."""
        kept = [line for line in (self.folder / "jobs").read_text().splitlines() if not line.startswith(f"{job} ")]
        (self.folder / "jobs").write_text("".join(f"{line}\n" for line in kept))
