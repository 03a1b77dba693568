"""Measurements, each against a rival in the same run; figures in the docs come from here."""
