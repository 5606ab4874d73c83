"""Campaigns that try to break what is certified: random networks, hostile files, injected and seeded faults."""
