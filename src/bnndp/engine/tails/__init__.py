"""Exponential moments of margins: tails where two moments say too little (docs/theory-exponential.md)."""
