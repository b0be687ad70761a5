"""How a ledger's tables came to be, one step a file; run by `storage/migrate.py`."""
