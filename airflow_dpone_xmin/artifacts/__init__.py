"""Arrow IPC files between extraction and staging: written once, hashed while written, verified while read. Imports contracts only."""
