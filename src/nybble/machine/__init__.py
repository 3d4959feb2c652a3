"""What this machine allows: processors, memory and their description."""
