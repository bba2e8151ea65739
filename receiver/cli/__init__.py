"""The command `receiver`: parse, call, print, exit status; one file per command."""
