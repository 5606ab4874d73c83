"""The paper's experiments: its published figures, and the same tables and figures measured on networks of our own."""
