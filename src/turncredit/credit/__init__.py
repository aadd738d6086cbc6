"""Turn-level credit assignment: per-turn rewards in, per-token credit out.

An algorithm is an estimator (``group`` baseline or ``critic``) with a reward placement (``terminal``,
``delayed``, ``per_turn``). The trainer knows neither: it asks an ``Estimator`` for the credit of
every sampled token.
"""

from turncredit.credit.estimators import CriticEstimator, Estimator, GroupEstimator, TokenCredit, make_estimator
from turncredit.credit.rows import Row, rows_of

__all__ = ["CriticEstimator", "Estimator", "GroupEstimator", "Row", "TokenCredit", "make_estimator", "rows_of"]
