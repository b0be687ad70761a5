"""Verdicts: one pure question per module, asked of a version's evidence."""
