"""The files that users write: recipes, environments with their pools, schedules; and the hardware catalog."""
