"""How fast a recipe trains: in several settings, by more workers, on the pools of a cluster, as a certificate."""
