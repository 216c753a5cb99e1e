"""The signed registry: load, verify, sign. Imports contracts and policy.

Nothing is re-exported here: ``--help`` and the provider's discovery import this package and must stay light.
"""
