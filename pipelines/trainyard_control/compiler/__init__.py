"""Recipes and environments to what Kubeflow or Vertex AI takes."""
