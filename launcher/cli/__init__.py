"""The command line, with one module for each command. It may import every other package."""
