"""Evaluation: is what the version says right, as far as people, code and a judge can tell from a sample?"""

from batch_assets.validation.evaluation.verdict import evaluation

__all__ = ["evaluation"]
