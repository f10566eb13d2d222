"""The checks of `doctor`: this machine, its software, the folder of runs and the scheduler."""
