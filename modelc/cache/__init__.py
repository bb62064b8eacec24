"""What was worked out once, kept by its content in the user's cache: prices and schedules of Tasks, machine code;
packages that sessions have compiled."""
