"""What submitit's functions need of a scheduler, each of which has one `FunctionScheduler`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from launcher.schedulers.detect import Kind
from launcher.schedulers.functions.parameters import Parameters
from launcher.schedulers.queries import Queries

FIRST_JOB = "LAUNCHER_FIRST_JOB"  # in a resubmitted job: the id of the first one


class FunctionQueries(Queries, Protocol):
    """Queries and commands of a scheduler whose submission takes a script and an environment."""

    def submit(self, script: str, environment: Mapping[str, str], *arguments: str, text: str | None = None) -> str:
        """Submits a script, and returns the id of its job.

        Args:
            script: its path; with `text` it is `-`.
            environment: of the command.
            arguments: more options.
            text: the script itself.

        Raises:
            Refused: the scheduler refused the job.
            NoAnswer: it is unknown whether it accepted the job.
        """


class FunctionScheduler(ABC):
    """A scheduler to which functions are submitted through submitit.

    Attributes:
        kind: the scheduler that the qsub on PATH must belong to.
        parameters: the class of the parameters that a user may set.
        usr_signal_kills: whether the scheduler sends SIGUSR2 as a warning before it kills a job (Grid Engine: -notify).
    """

    kind: Kind
    parameters: type[Parameters]
    usr_signal_kills = False

    @abstractmethod
    def queries(self, timeout: float = 60) -> FunctionQueries:
        """Returns the commands; `timeout` in seconds applies to each of them."""

    @abstractmethod
    def array_of(self, job_id: str) -> str:
        """Returns the id of the array of an element, or the id itself for a plain job. Pure."""

    @abstractmethod
    def exports(self, environ: Mapping[str, str]) -> str:
        """Returns shell text that sets this environment in a job, but for what the scheduler sets there. Pure."""

    @abstractmethod
    def largest_array(self, queue: str | None) -> int | None:
        """Returns the maximum number of elements of an array in a queue (None: the default one); None: no limit.

        Raises:
            QueryError: the scheduler does not answer.
        """

    @abstractmethod
    def output(self, job_id: str) -> str:
        """Returns the name of the file with the output of a job's script. Pure."""

    @abstractmethod
    def find(self, command: str) -> str | None:
        """Returns the path of a command of the scheduler on a node of a job; None: there is none."""

    @abstractmethod
    def resubmission(self, script: str, token: str, first: str) -> tuple[str, tuple[str, ...]]:
        """Returns script and qsub options of a plain job that continues a checkpointed job or array element. Pure.

        Args:
            script: script of the checkpointed job.
            token: by which the new job is found.
            first: id of the first job of the chain, under which submitit knows all of them; passed on in FIRST_JOB.
        """
