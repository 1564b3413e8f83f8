"""Work that takes minutes: Ctrl-C, checkpoints, fingerprints, progress, files."""
