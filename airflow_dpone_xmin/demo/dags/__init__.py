"""The folder that the demo shows to the scheduler: one pipeline, as a user would write it."""
