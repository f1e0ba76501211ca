"""Measurements of speed: what `riskppo bench` prints."""
