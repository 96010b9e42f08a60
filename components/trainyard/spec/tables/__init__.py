"""The columns of a table in a recipe: types, formulas and the split."""
