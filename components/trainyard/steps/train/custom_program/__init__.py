"""Training by a program of the recipe's own: it is started, followed by what it prints, and its model is taken."""
