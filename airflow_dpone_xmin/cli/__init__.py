"""The command line, dpone-xmin."""
