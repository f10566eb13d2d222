"""The interface that a scheduler implements so that submitit functions can be submitted to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from launcher.schedulers.detect import Kind
from launcher.schedulers.functions.parameters import Parameters
from launcher.schedulers.queries import Queries

FIRST_JOB = "LAUNCHER_FIRST_JOB"  # variable of a resubmitted job with the id of the first job


class FunctionQueries(Queries, Protocol):
    """Queries and commands of a scheduler, with a command that submits a script."""

    def submit(self, script: str, environment: Mapping[str, str], *arguments: str, text: str | None = None) -> str:
        """Submits a job script, and returns the job's id.

        Args:
            script: path of the script; `-` with `text`.
            environment: environment of the submission command.
            arguments: further options of the submission command.
            text: text of the script, which is sent to the command's stdin.

        Raises:
            Refused: the scheduler refused the job.
            NoAnswer: the reply was lost, so the job may or may not exist.
        """


class FunctionScheduler(ABC):
    """A scheduler to which functions are submitted through submitit.

    Attributes:
        kind: scheduler that the qsub on PATH must belong to.
        parameters: class of the parameters that users can set.
        usr_signal_kills: whether the scheduler sends SIGUSR2 as a warning before it kills a job (Grid Engine: -notify).
    """

    kind: Kind
    parameters: type[Parameters]
    usr_signal_kills = False

    @abstractmethod
    def queries(self, timeout: float = 60) -> FunctionQueries:
        """Returns the scheduler's queries and commands; each command has this timeout in seconds."""

    @abstractmethod
    def array_of(self, job_id: str) -> str:
        """Returns the array id of an array element's job id; the id of a plain job is returned unchanged."""

    @abstractmethod
    def exports(self, environ: Mapping[str, str]) -> str:
        """Returns shell text that sets this environment in a job, except variables that the scheduler sets."""

    @abstractmethod
    def largest_array(self, queue: str | None) -> int | None:
        """Returns the maximum number of elements of an array, or None without a limit.

        Args:
            queue: name of the queue; None: the default queue.

        Raises:
            QueryError: the scheduler does not answer.
        """

    @abstractmethod
    def output(self, job_id: str) -> str:
        """Returns the name of a job script's output file."""

    @abstractmethod
    def find(self, command: str) -> str | None:
        """Returns the path of a scheduler command on a job's node, or None if the node does not have it."""

    @abstractmethod
    def resubmission(self, script: str, token: str, first: str) -> tuple[str, tuple[str, ...]]:
        """Returns the script and the qsub options of a plain job that continues a job or array element.

        Args:
            script: script of the checkpointed job or array.
            token: unique text that is stored with the new job, so that a later query can find it.
            first: id of the first job of the chain, by which submitit knows all its jobs; passed on in FIRST_JOB.
        """
