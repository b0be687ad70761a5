"""Work: claim shards, stream records through a warm engine, put results, seal."""
