"""Process groups on this machine, and how to kill what tasks and ranks leave behind. Imports nothing of launcher.

- `groups`: processes on this machine that others can find again and signal; how to kill what a rank leaves behind
- `guard`: kills all processes that a scheduler's task leaves behind, found by the variable LAUNCHER_GUARD
- `limits`: limits of this process: open files, and what the system does not give just now
"""
