"""Commands that explain costs: audit, report, replay, gateway and learned."""
