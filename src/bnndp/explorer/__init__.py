"""A network to play with in a browser: move an input and a radius, and see what is proved and what an attack finds."""
