"""How much memory is left, from what Linux tells of the machine and of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.binding import hardware

MEMINFO = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\n"
V2 = "/sys/fs/cgroup"
V1 = "/sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"/proc/meminfo": MEMINFO}, 400 * 1024),
        ({"/proc/meminfo": MEMINFO, "/proc/self/cgroup": "0::/\n"}, 400 * 1024),
        (  # a limit of the job above that of the step, and cache that can be given back
            {
                "/proc/meminfo": MEMINFO,
                "/proc/self/cgroup": "0::/job_1/step_0\n",
                f"{V2}/job_1/step_0/memory.max": "max\n",
                f"{V2}/job_1/step_0/memory.current": "5000\n",
                f"{V2}/job_1/memory.max": "9000\n",
                f"{V2}/job_1/memory.current": "5000\n",
                f"{V2}/job_1/memory.stat": "anon 1\nfile 1500\ninactive_file 1000\n",
            },
            5000,
        ),
        (
            {
                "/proc/meminfo": MEMINFO,
                "/proc/self/cgroup": "5:cpu:/x\n4:hugetlb,memory:/slurm/job\n0::/\n",
                f"{V1}/slurm/job/memory.limit_in_bytes": "7000\n",
                f"{V1}/slurm/job/memory.usage_in_bytes": "8000\n",
            },
            0,
        ),
        (  # as the memory of a container may be told that has no limit
            {
                "/proc/meminfo": MEMINFO,
                "/proc/self/cgroup": "4:memory:/\n",
                f"{V1}/memory.limit_in_bytes": "-1\n",
                f"{V1}/memory.usage_in_bytes": "8000\n",
            },
            400 * 1024,
        ),
    ],
)
def test_the_least_of_all_limits_counts(files: dict[str, str], free: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert hardware.free_memory(tmp_path) == free


def test_this_machine_tells_how_much_it_has() -> None:
    free = hardware.free_memory()
    assert free is not None and free > 2**20
