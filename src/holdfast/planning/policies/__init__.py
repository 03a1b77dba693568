"""Cache policies that the adaptive one is compared with."""
