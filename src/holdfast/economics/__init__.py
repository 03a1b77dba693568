"""What a choice costs: pure arithmetic over the catalog's prices."""
