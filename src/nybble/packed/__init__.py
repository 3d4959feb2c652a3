"""The packed cache: models as they lie in memory, kept on disk so that the next start need not make them again."""
