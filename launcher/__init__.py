"""Submit PyTorch jobs to Slurm, PBS and Grid Engine from one Hydra config, and follow them until they are done.

For code that runs in ranks, and for `WorkloadHook`, which runs where a run is submitted:

    from launcher import init
    env = init()          # a process group, from srun, mpiexec, torchrun, pbsdsh or nothing at all
    print(env.rank, env.world_size, env.device)

| name | does |
|---|---|
| `init` | creates the process group, or uses an existing one; returns the `Env` of this rank |
| `rank_zero` | whether this is rank 0 |
| `should_stop` | whether ranks must save and exit with code 75 now; the same answer on all ranks |
| `progress`, `evaluated`, `report` | report the step, the result of an evaluation, the run's metrics |
| `run_dir` | the run's directory |
| `Resumable` | a training that saves, stops and resumes by itself: model, optimizer, data loader, given once |
| `Checkpointer` | saves in the background, publishes only complete checkpoints, loads at any world size |
| `GlobalBatchSampler` | the samples of this rank; a global batch has the same samples at any world size |
| `WorkloadHook`, `ConfigError` | a workload's checks, input files and data sets at submission; their error |
| `Topology`, `TopologyError` | rank, world size and hosts, from the scheduler's variables; their error |

All of it works outside of a run as well. For scripts on the login node, which submit and follow runs:

    import launcher
    run = launcher.submit(["workload=ddp_mnist", "cluster=slurm", "nodes=2"])
    print(run.wait(), run.metrics())

| name | does |
|---|---|
| `submit` | submits a run from the overrides of a command line, and returns it |
| `prepare` | a dry run: a `PreparedRun`, the very object that would be submitted |
| `find` | finds a submitted run by its id, a prefix of it, or its directory |
| `Run` | a submitted run: `id`, `path`, `state()`, `wait()`, `cancel()`, `resume()`, `metrics()`, `logs()` |
| `RemoteRun` | the same of a run on a cluster behind ssh |
| `RunState` | a run's state, as `state()` and `wait()` return it |

Importing this package loads neither torch nor Hydra. They are loaded when a name that needs them is used.

For changes of the launcher itself: modules that belong to no package.

- `__main__`: entry point of every command; prints errors and sets exit codes
- `api`: `submit`, `prepare`, `find` and `Run`, for scripts on the login node
- `attach`: `attach` on a rank's node: the program that it starts there, and how agents are asked for it
- `io_bounds`: every bound on what is written and read: bytes of files, lines and messages; levels, integers, counts
- `errors`: base classes of errors with a text for the user; the text of an OSError; exit codes of commands and attempts
- `paths`: conf/, templates/, the user's folders; the command name shown in hints; starting a module as a process
- `fast_dataclasses`: base class of small immutable classes, which costs nothing at the start
- `units`: parsing of wall times, sizes and ranges that users write
- `formatting`: text for people: numbers, names, what a terminal must not execute or cannot show; a line of the log
- `processes`: processes of this machine: finding, signalling and killing them; limits of open files
- `redaction`: name patterns of secret settings and variables; what is shown of them, of overrides and of URLs
- `torch_compat`: differences between torch 2.4 and the newest version
"""

# Nothing is imported here: `python -m launcher` first checks whether others can put modules into the working folder.
TYPE_CHECKING = False  # type checkers take this name for True
if TYPE_CHECKING:
    from launcher.api import PreparedRun, RemoteRun, Run, find, prepare, submit
    from launcher.checkpoint.checkpointer import Checkpointer
    from launcher.checkpoint.resumable import GlobalBatchSampler, Resumable
    from launcher.errors import ConfigError
    from launcher.monitoring.run_status import RunState
    from launcher.plan.workload_hook import WorkloadHook
    from launcher.schedulers.topology import Topology, TopologyError
    from launcher.worker.process_group import Env, evaluated, init, progress, rank_zero, report, run_dir
    from launcher.worker.stop import should_stop, stopping

__version__ = "0.1.0"
__all__ = [
    "Checkpointer", "ConfigError", "Env", "GlobalBatchSampler", "PreparedRun", "RemoteRun", "Resumable", "Run",
    "RunState", "Topology", "TopologyError", "WorkloadHook", "evaluated", "find", "init", "prepare", "progress",
    "rank_zero", "report", "run_dir", "should_stop", "stopping", "submit",
]  # fmt: skip
_MODULES = {
    "Checkpointer": "launcher.checkpoint.checkpointer",
    "ConfigError": "launcher.errors",
    "GlobalBatchSampler": "launcher.checkpoint.resumable",
    "PreparedRun": "launcher.api",
    "RemoteRun": "launcher.api",
    "Resumable": "launcher.checkpoint.resumable",
    "Run": "launcher.api",
    "RunState": "launcher.monitoring.run_status",
    "Topology": "launcher.schedulers.topology",
    "TopologyError": "launcher.schedulers.topology",
    "WorkloadHook": "launcher.plan.workload_hook",
    "find": "launcher.api",
    "prepare": "launcher.api",
    "should_stop": "launcher.worker.stop",
    "stopping": "launcher.worker.stop",  # the former name of should_stop
    "submit": "launcher.api",
}


if not TYPE_CHECKING:  # with __getattr__ a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Nothing may be imported before the check of the working folder (launcher/__main__.py)
        import importlib

        return getattr(importlib.import_module(_MODULES.get(name, "launcher.worker.process_group")), name)
