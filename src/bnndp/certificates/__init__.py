"""Certificates: claims about a network with the numbers from which an independent program proves them again."""
