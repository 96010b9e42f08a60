"""Beam as the steps use it: where a pipeline runs, its jobs on engines elsewhere, and tasks that workers share."""
