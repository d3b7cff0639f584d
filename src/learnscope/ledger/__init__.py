"""Statistics of every training example over its presentations, in memory that does not grow with their number."""

from learnscope.ledger.batch import IdError, LedgerError
from learnscope.ledger.ledger import Ledger

__all__ = ["IdError", "Ledger", "LedgerError"]
