"""Ways of having a server, one file each."""
