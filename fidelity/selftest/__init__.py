"""Would this gate have caught it? Every fault of the embedded engine, and what the probes make of it."""
