"""What is true of a model: limits, cache rules and prices, each row dated and sourced; token counts."""
