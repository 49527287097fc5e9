"""What would explain a pattern of corrupt and clean cells."""
