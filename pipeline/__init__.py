"""Data side of clozeline: raw text -> documents -> vocabulary -> Arrow shards. Needs no torch."""
