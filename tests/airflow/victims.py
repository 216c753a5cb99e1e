"""Names of the DAGs in ``dags/victims.py``, which only a task process may import."""

VICTIMS = ("sigterm_in_extraction", "sigterm_in_bulk_load", "sigterm_in_transaction", "sigkill_in_transaction")
