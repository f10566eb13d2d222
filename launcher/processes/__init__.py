"""Process groups on this machine, and how to kill what tasks and ranks leave behind. Imports nothing of launcher.

- `groups`: a process or its group by host, id and start time; whether it is of this machine, and lives
- `guard`: kills everything that a task leaves behind, by a variable of its environment
- `orphans`: kills everything that a rank leaves behind; the agent adopts it
"""
