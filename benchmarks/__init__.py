"""Every claim about speed, each as a command that prints a number measured in one run: `python -m benchmarks`."""
