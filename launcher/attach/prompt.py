"""The terminal's end of a rank's debugger: lines are edited here, with readline, and completed by the rank."""

from __future__ import annotations

import sys
from typing import Any

from launcher.attach.reach import Talk

LEFT = "the debugger waits where it is; the same command brings you back"


def talk(line: Talk, rank: int) -> int:
    """Talks with the debugger until the rank ends, or the user leaves (Ctrl-D; while the rank runs, Ctrl-C).

    Returns:
        The command's exit code: 1 when the debugger was never reached.
    """
    reached = runs = False
    complete = _Completions(line)
    try:
        while (message := line.receive()) is not None:
            reached = True
            if "text" in message:
                print(message["text"], end="", flush=True)
            elif "prompt" in message:
                runs, typed = False, _ask(str(message["prompt"]), complete)
                if typed is None:
                    print(f"launcher: {LEFT}")
                    return 0
                line.send(line=typed)
            elif "runs" in message:
                print(f"launcher: rank {rank} goes on; its next breakpoint shows up here, Ctrl-C leaves it alone")
                runs = True
            elif "bye" in message:
                print(f"launcher: {message['bye']}")
                return 0
    except KeyboardInterrupt:
        print("" if runs else f"\nlauncher: {LEFT}")
        return 0
    except OSError:
        pass
    if not reached:
        print(f"launcher: the debugger of rank {rank} cannot be reached", file=sys.stderr)
        return 1
    print(f"launcher: rank {rank} has ended")
    return 0


def _ask(prompt: str, complete: Any) -> str | None:
    """A line; None: the user leaves."""
    while True:
        try:
            with complete:
                return input(prompt)
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print("\n--KeyboardInterrupt--")


class _Completions:
    """Tab asks the rank, while a line is edited."""

    def __init__(self, line: Talk) -> None:
        self._line = line
        self._found: list[str] = []
        try:
            import readline
        except ImportError:
            self._readline: Any = None
        else:
            self._readline = readline if sys.stdin.isatty() else None

    def __enter__(self) -> None:
        if self._readline:
            self._readline.set_completer(self._complete)
            self._readline.set_completer_delims(" \t\n`@#$%^&*()=+[{]}\\|;:'\",<>?")  # pdb's own
            self._readline.parse_and_bind("tab: complete")

    def __exit__(self, *_: object) -> None:
        if self._readline:
            self._readline.set_completer(None)

    def _complete(self, word: str, state: int) -> str | None:
        if state == 0:
            found = self._readline
            self._line.send(complete=[word, found.get_line_buffer(), found.get_begidx(), found.get_endidx()])
            self._found = []
            message = self._line.receive()
            if message is not None:
                self._found = [str(each) for each in message.get("completions", ())]
        return self._found[state] if state < len(self._found) else None
