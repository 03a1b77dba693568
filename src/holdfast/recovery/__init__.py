"""Known failures, the recovery steps for each, and how often they are attempted."""
