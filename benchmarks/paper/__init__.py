"""The paper's tables and figures: its published numbers beside ours, measured on networks trained here."""
