"""Which texts fit a query: lexical and vector scores, fused, deterministic, explained."""
