"""Facts about models: limits, cache rules and prices, each row dated and sourced; and token estimates."""
