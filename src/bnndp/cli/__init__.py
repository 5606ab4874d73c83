"""The command line: one file a command, thin; torch is imported only once a command has work to do."""
