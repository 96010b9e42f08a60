"""The training in a recipe: network, schedule, optimizer, augmentation, or a custom program."""
