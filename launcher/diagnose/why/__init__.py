"""Why a run waits: what the scheduler says in words, the limit that binds, and what would start sooner."""
