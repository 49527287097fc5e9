"""The outputs, one file each. They read a verdict and a manifest, and never talk to a server."""
