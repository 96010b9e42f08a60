"""What a run leaves for people to look at: the summary, the report and its figures."""
