"""Facts: snapshots, the SQL ledger, objects, sealed shards, the warehouse."""
