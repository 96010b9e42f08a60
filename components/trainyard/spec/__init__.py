"""What people write: recipes, environments with their pools, schedules, and the catalog of hardware they draw on."""
