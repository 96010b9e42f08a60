"""What Trainyard costs against what a user would do instead, both in one run. `make bench` writes the table."""
