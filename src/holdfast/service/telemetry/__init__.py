"""Telemetry of the service: Prometheus metrics, and spans for an OTLP collector."""
