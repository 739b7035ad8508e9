"""Evidence that control is right: conversations, mutants, references, determinism. Not part of the public API."""
