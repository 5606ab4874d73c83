"""The command line: one file per command, thin; torch is imported only once a command has work to do."""
