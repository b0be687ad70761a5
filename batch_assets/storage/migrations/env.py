"""What alembic runs: our migrations on the connection that `storage/migrate.py` hands over."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=False)
context.run_migrations()
