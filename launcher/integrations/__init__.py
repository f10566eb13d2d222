"""Callbacks for the Trainer of Lightning and the Trainer of Hugging Face's transformers.

Each module has a `LauncherCallback`, and `last_checkpoint()` to resume from. Outside of a run both do nothing. Nothing
else in launcher imports them, Lightning or transformers.

- `trainers`: what both need: the newest checkpoint on disk, and copies of checkpoints in memory
- `lightning`: callback for Lightning's Trainer; extra `launcher[lightning]`
- `transformers`: callback for transformers' Trainer; extra `launcher[transformers]`
"""
