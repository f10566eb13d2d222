"""`python -m launcher COMMAND ...`, or overrides of the config to submit a run. Loads nothing before it knows which."""

from __future__ import annotations

import gc
import sys


def main(argv: list[str] | None = None) -> int:
    """Runs one command line and returns its exit code (launcher/errors.py lists them)."""
    arguments = sys.argv[1:] if argv is None else argv
    # A command makes many objects and hardly any garbage. Looking for some took a fifth of a submission's time.
    gc.set_threshold(100_000)
    from launcher.errors import INTERRUPTED, LauncherError

    try:
        if arguments and not arguments[0].startswith("-") and "=" not in arguments[0]:
            from launcher.cli import commands

            return commands.main(arguments)
        from launcher.cli import submit

        return submit.main(arguments or ["--help"])
    except LauncherError as error:
        print(f"launcher: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
        return 0
    finally:
        gc.freeze()  # or the interpreter looks once more at exit


if __name__ == "__main__":
    sys.exit(main())
