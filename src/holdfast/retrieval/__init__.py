"""In-process search: lexical, vector and link scores, fused deterministically and explained."""
