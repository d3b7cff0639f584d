"""Cases written after the analyses, in other clothes: run when no analysis was changed any more."""
