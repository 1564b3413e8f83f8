"""What developers run that is neither a test nor a benchmark."""
