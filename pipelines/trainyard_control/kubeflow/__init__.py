"""The Kubeflow API: submissions, runs and schedules."""
