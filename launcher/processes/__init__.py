"""Process groups, orphans and what must not survive a task, on this machine. Imports nothing of the launcher."""
