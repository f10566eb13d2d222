"""What runs in a rank: its devices, its place among the others, the workload. Imports torch, but not the agent."""
