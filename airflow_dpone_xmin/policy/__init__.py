"""The decisions: pure functions over contracts. Imports contracts only; does no I/O."""
