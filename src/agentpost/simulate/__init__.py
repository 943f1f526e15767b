"""Fleets that never ran: lakes made from a seed, with known faults, to measure and to test the pipeline with."""
