"""Everything that runs inside a step of a Trainyard pipeline."""
