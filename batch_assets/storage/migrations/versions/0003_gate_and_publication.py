"""Overrides in the history, the sets of files that incremental versions are published as, and their bases."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Column, Float, String, Text

revision = "0003"
down_revision = "0002"

Integer = sa.Integer().with_variant(sa.BigInteger(), "postgresql")
Key = String().with_variant(String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("publications", Column("override", Text))
    op.add_column("versions", Column("base_version", Key))
    op.add_column("versions", Column("batch", String))
    op.create_table(
        "file_sets",
        Column("job_version", Key, primary_key=True),
        Column("job", String, nullable=False),
        Column("content_sha256", String, nullable=False),
        Column("manifest_key", String, nullable=False),
        Column("manifest_sha256", String, nullable=False),
        Column("rows", Integer, nullable=False),
        Column("dead_letters", Integer, nullable=False),
        Column("bytes", Integer, nullable=False),
        Column("at", Float, nullable=False),
    )
    op.create_table(
        "swept",
        Column("job_version", Key, primary_key=True),
        Column("who", String, nullable=False),
        Column("at", Float, nullable=False),
    )
