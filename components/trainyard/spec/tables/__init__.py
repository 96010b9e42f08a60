"""What a recipe says of a table: its columns, the formulas over them, and how its rows are split."""
