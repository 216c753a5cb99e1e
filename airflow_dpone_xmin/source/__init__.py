"""PostgreSQL: boundary, authority, projection, extraction to artifacts. Imports contracts and policy."""
