"""`python -m launcher COMMAND ...`, or overrides of the config to submit a run. Imports only what the command needs."""

from __future__ import annotations

import gc
import os
import sys

from launcher.files import permission_bits


def main(argv: list[str] | None = None) -> int:
    """Runs a command line and returns its exit code (listed in launcher/errors.py)."""
    arguments = sys.argv[1:] if argv is None else argv
    # Commands make many objects and little garbage. The collector took a fifth of a submission's time.
    gc.set_threshold(300_000)
    try:
        # Nothing may be imported before the check of the working folder
        from launcher.formatting import cleaned

        with cleaned():
            return _report_errors(arguments)
    except KeyboardInterrupt:  # while modules were imported
        return 130  # INTERRUPTED of launcher/errors.py, which may not have been imported yet


def _report_errors(arguments: list[str]) -> int:
    # Prints errors that the user can fix without a traceback
    # Nothing may be imported before the check of the working folder
    from launcher.cli import commands
    from launcher.errors import DONE, FAILED, INTERRUPTED, LauncherError

    try:
        code = commands.main(arguments)
        sys.stdout.flush()  # here, so that a full disk is reported below
        return code
    except LauncherError as error:
        print(f"launcher: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        if str(error):
            print(f"launcher: {error}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `| head`, has closed the pipe
        _discard_output()
        return DONE
    except OSError as error:
        from launcher.errors import explain

        explained = explain(error)
        if explained is None or os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"launcher: {explained}", file=sys.stderr)
        _discard_output()
        return FAILED
    finally:
        gc.freeze()  # or the collector runs once more at exit


def _discard_output() -> None:
    # Otherwise the interpreter reports an error at exit
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note_on_folder(folder: str = ".") -> str | None:
    """Returns a warning if other users can write to `folder`, from which `python -m` imports modules; else None."""
    try:
        found = os.stat(folder)
    except OSError:  # the folder is gone
        return None
    user = os.geteuid()
    if found.st_uid in (0, user):
        shared = found.st_mode & 0o022  # otherwise the group's members do not matter
        group = permission_bits.private_group(user) if shared else -1
        if not (
            shared and permission_bits.others(found.st_mode, found.st_gid, group, permission_bits.has_list(folder))
        ):
            return None
    return "note: `python -m` imports modules from this folder, to which others can write: type `launcher` here"


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False) and (warning := note_on_folder()):  # python -P, since 3.11
        print(warning, file=sys.stderr)
    sys.exit(main())
