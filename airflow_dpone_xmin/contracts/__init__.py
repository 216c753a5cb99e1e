"""The nouns: frozen types and digests. Imports the standard library and pydantic only; does no I/O."""
