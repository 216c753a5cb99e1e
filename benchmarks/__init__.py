"""Measures the product on real databases, as ratios within one run. ``make bench``; never part of a timed test."""
