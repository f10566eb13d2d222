"""Submit PyTorch jobs to Slurm and PBS from one Hydra config, and follow them until they are done.

For code that runs in ranks, and for `WorkloadHook`, which runs where a run is submitted:

    from launcher import init
    env = init()          # a process group, from srun, mpiexec, torchrun, PBS or nothing at all
    print(env.rank, env.world_size, env.device)

| name | does |
|---|---|
| `init` | makes the process group, or takes the one that is there; returns the `Env` of this rank |
| `rank_zero` | whether this is rank 0 |
| `stopping` | whether it is time to save and leave with exit code 75; the same on all ranks |
| `progress`, `evaluated`, `report` | report to the run how far it is, the result of an evaluation, its metrics |
| `run_dir` | the run's directory |
| `Checkpointer` | saves in the background, publishes whole checkpoints, loads at any number of ranks |
| `GlobalBatchSampler` | which samples this rank takes, the same for any number of ranks |
| `WorkloadHook`, `ConfigError` | what a workload brings to its submission: checks, inputs, data sets; how it refuses |
| `Topology`, `TopologyError` | what `init` derives this rank's place from |

All of it works outside of a run as well, where nothing is reported.

For scripts on the login node, which submit runs and follow them (docs/python.md):

    import launcher
    run = launcher.submit(["workload=ddp_mnist", "cluster=slurm", "nodes=2"])
    print(run.wait(), run.metrics())

| name | does |
|---|---|
| `submit` | submits a run from the overrides of a command line, and returns it |
| `prepare` | a dry run: a `PreparedRun`, the very object that would be submitted |
| `find` | a run that is there, by its name |
| `Run` | its `id`, `path`, `state()`, `wait()`, `cancel()`, `resume()`, `metrics()`, `logs()` |
| `RunState` | what `state()` and `wait()` return |

Importing this costs nothing: torch, or Hydra, is loaded when one of the names is used.

For changes of the launcher itself: modules that belong to no package.

- `__main__`: the start of every command; how its errors are printed
- `api`: `submit`, `prepare`, `find` and `Run`, for scripts on the login node
- `errors`: errors with a text for the user; exit codes of commands and attempts
- `paths`: where conf/, templates/ and the user's folders are
- `user_settings`: the user's files of settings, whose keys may be written as on the command line
- `own_module`: how this program was called; how its modules are started as processes
- `units`: parsing of wall times, sizes and ranges that users write
- `formatting`: sizes, times, numbers and plurals as text
- `log_line`: the launcher's own lines in the output of a job or a rank
- `findings`: results of checks: level, subject, what was found, what to do
- `redaction`: which names are of secrets; text without passwords
- `escapes`: removes terminal control sequences from text
- `torch_compat`: differences between torch 2.4 and the newest version
- `torch_compat_dcp`: the same in torch.distributed.checkpoint
"""

# Nothing is imported here: `python -m launcher` first looks whether others can put modules into the working folder.
TYPE_CHECKING = False  # but for type checkers, which go by the name
if TYPE_CHECKING:
    from launcher.api import PreparedRun, Run, find, prepare, submit
    from launcher.checkpoint.checkpointer import Checkpointer
    from launcher.errors import ConfigError
    from launcher.monitoring.state import RunState
    from launcher.schedulers.topology import Topology, TopologyError
    from launcher.spec.workload_hook import WorkloadHook
    from launcher.worker.global_batch import GlobalBatchSampler
    from launcher.worker.process_group import Env, evaluated, init, progress, rank_zero, report, run_dir
    from launcher.worker.stopping import stopping

__version__ = "0.1.0"
__all__ = [
    "Checkpointer", "ConfigError", "Env", "GlobalBatchSampler", "PreparedRun", "Run", "RunState", "Topology",
    "TopologyError", "WorkloadHook", "evaluated", "find", "init", "prepare", "progress", "rank_zero", "report",
    "run_dir", "stopping", "submit",
]  # fmt: skip
_MODULES = {
    "Checkpointer": "launcher.checkpoint.checkpointer",
    "ConfigError": "launcher.errors",
    "GlobalBatchSampler": "launcher.worker.global_batch",
    "PreparedRun": "launcher.api",
    "Run": "launcher.api",
    "RunState": "launcher.monitoring.state",
    "Topology": "launcher.schedulers.topology",
    "TopologyError": "launcher.schedulers.topology",
    "WorkloadHook": "launcher.spec.workload_hook",
    "find": "launcher.api",
    "prepare": "launcher.api",
    "stopping": "launcher.worker.stopping",
    "submit": "launcher.api",
}


if not TYPE_CHECKING:  # a checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Lazily: nothing may be imported before the note on the folder (launcher/__main__.py)
        import importlib

        return getattr(importlib.import_module(_MODULES.get(name, "launcher.worker.process_group")), name)
