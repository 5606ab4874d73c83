"""Networks from other people's files: pickles opened in a child process, and tables of names for what is in them."""
