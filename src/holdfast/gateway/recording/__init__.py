"""Records forwarded exchanges: finds their conversation, prices alternatives, and stores calls and verdicts."""
