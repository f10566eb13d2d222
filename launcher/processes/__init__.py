"""Process groups on this machine, and how to kill what tasks and ranks leave behind. Imports nothing of launcher."""
