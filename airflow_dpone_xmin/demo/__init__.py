"""The demonstration: embedded servers and real flights."""
