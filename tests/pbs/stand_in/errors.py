"""The server's errors, with their codes and texts (OpenPBS 23.06.06, pbs_error.h)."""

from __future__ import annotations


class PbsError(Exception):
    """An error of the server. A command prints the text after its own name, and exits with the code modulo 256."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text

    @property
    def exit_status(self) -> int:
        return self.code % 256


UNKNOWN_JOB = 15001
PERMISSION = 15007
BAD_HOST = 15008
NO_CONNECTION = 15010
BAD_VALUE = 15014
FINISHED = 15139
FINISHED_SUBJOB = 15159
NO_HISTORY = 15140


def unknown_job() -> PbsError:
    return PbsError(UNKNOWN_JOB, "Unknown Job Id")


def permission() -> PbsError:
    return PbsError(PERMISSION, "Unauthorized Request ")


def unknown_signal() -> PbsError:
    return PbsError(15013, "Unknown/illegal signal name")


def bad_value(what: str = "") -> PbsError:
    return PbsError(BAD_VALUE, f"Illegal attribute or resource value {what}".rstrip())


def bad_state() -> PbsError:
    return PbsError(15016, "Request invalid for state of job")


def unknown_queue() -> PbsError:
    return PbsError(15018, "Unknown queue")


def queue_disabled() -> PbsError:
    return PbsError(15021, "Queue is not enabled")


def unknown_resource(text: str) -> PbsError:
    return PbsError(15035, f"Unknown resource{text}")


def exceeds_queue() -> PbsError:
    return PbsError(15036, "Job violates queue and/or server resource limits")


def not_rerunnable() -> PbsError:
    return PbsError(15038, "job is not rerunnable")


def bad_user() -> PbsError:
    return PbsError(15023, "Bad UID for job execution")


def bad_group() -> PbsError:
    return PbsError(15045, "Bad GID for job execution")


def bad_node_spec() -> PbsError:
    return PbsError(15089, "node(s) specification error")


def array_too_large() -> PbsError:
    return PbsError(15107, "Array job exceeds server or queue size limit")


def not_for_select(resource: str) -> PbsError:
    return PbsError(15108, f'Resource invalid in "select" specification: {resource}')


def not_with_select(resource: str) -> PbsError:
    return PbsError(15109, f'"-lresource=" cannot be used with "select" or "place", resource is: {resource}')


def nodes_with_select() -> PbsError:
    return PbsError(15110, "Cannot be used with select or place: nodes")


def place_without_select() -> PbsError:
    return PbsError(15111, 'Cannot have "place" without "select"')


def twice_in_chunk(resource: str) -> PbsError:
    return PbsError(15116, f"duplicated resource within a section of a select specification, resource is: {resource}")


def finished() -> PbsError:
    return PbsError(FINISHED, "Job has finished")


def finished_subjob() -> PbsError:
    return PbsError(FINISHED_SUBJOB, "Request invalid for finished array subjob")


def no_history() -> PbsError:
    return PbsError(NO_HISTORY, "PBS is not configured to maintain job history")


def only_for_arrays() -> PbsError:
    return PbsError(15231, "Attribute has to be set on an array job")


def no_access() -> PbsError:
    return PbsError(15022, "Access to queue is denied")


def no_route() -> PbsError:
    return PbsError(15039, "Job rejected by all possible destinations")


def too_many_jobs(queue: str) -> PbsError:
    return PbsError(15142, f"would exceed queue {queue}'s per-user limit")


def required(what: str) -> PbsError:
    """Returns the error of a site's submission hook that requires an option or resource."""
    return PbsError(15136, f"{what} is required to be set.")
