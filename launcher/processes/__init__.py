"""Process groups on this machine, and how to kill what tasks and ranks leave behind. Imports nothing of launcher.

- `groups`: a process group that other processes can find again, check and signal: host, process id, start time
- `guard`: kills all processes that a scheduler's task leaves behind, found by the variable LAUNCHER_GUARD
- `open_files`: raises this process's limit of open files, and restores it in what the user's programs run in
- `orphans`: kills all processes that a rank leaves behind: the agent is their subreaper
- `shortages`: waits for a process, memory or descriptor that the system does not give now
"""
